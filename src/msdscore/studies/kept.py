"""Steps of a study that are kept until it is finished: a stopped study goes on where it was."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.io.outputs.run import discard, open_run

Steps = Callable[[int, Callable[[], Any]], Any]
_ANSWER = "answer"
_SUFFIX = ".steps.parquet"


def every_time(number: int, make: Callable[[], Any]) -> Any:
    """A step that nobody keeps."""
    return make()


@contextmanager
def kept_steps(output: Path | None, study: str, work: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[Steps]:
    """Steps by number, each made once: their answers (plain values) lie beside `output` until `forget` is called.

    `work` names everything that the answers depend on; answers of other work are refused, or with `overwrite` thrown
    away. Without an output nothing is kept.
    """
    if output is None:
        yield every_time
        return
    place = output.with_name(f"{output.stem}.{study}{_SUFFIX}")
    if overwrite:
        discard(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open_run(place, work) as run:
        done = run.done()
        answers = (json.loads(part[_ANSWER][0].as_py()) for part in run.tables()) if done else ()
        known = dict(zip(done, answers, strict=True))

        def step(number: int, make: Callable[[], Any]) -> Any:
            if number not in known:
                known[number] = make()
                run.write(number, pa.table({_ANSWER: [json.dumps(known[number])]}))
            return known[number]

        yield step


def forget(output: Path) -> None:
    """Throw away what was kept for an output that is there now."""
    for folder in output.parent.glob(f"{escape(output.stem)}.*{_SUFFIX}.parts"):
        discard(folder.with_suffix(""))
