"""A causal language model as a reader of captions without their images; what it has read is kept until all is."""

from collections.abc import Callable, Collection, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from msdscore.io.outputs.run import open_run

_TURN = 256  # captions between two parts on disk
_DIGITS = 3  # of a nat: what machines and batches change lies behind them
_COLUMN = "log_likelihood"


def read_likelihoods(
    texts: Collection[str],
    source: str,
    *,
    keep: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Log-likelihood in nats of each caption under a causal language model.

    `source` is a folder, a hub name, `package:NAME/`, or any of these with the name of a `.gguf` file behind it. A
    reading that was stopped goes on where the parts beside `keep` end.
    """
    ordered = sorted(set(texts), key=lambda text: (len(text), text))
    load = cache(lambda: _load(source))  # on the first caption: a reading that is finished needs no weights

    def read(batch: list[str]) -> list[float]:
        return [round(value, _DIGITS) for value in load()(batch)]

    turns = [ordered[start : start + _TURN] for start in range(0, len(ordered), _TURN)]
    likelihoods: dict[str, float] = {}
    for turn, values in zip(turns, _answers(turns, read, keep, source), strict=True):
        likelihoods |= zip(turn, values, strict=True)
        progress(len(likelihoods), len(ordered))
    return likelihoods


def _answers(
    turns: list[list[str]], read: Callable[[list[str]], list[float]], keep: Path | None, source: str
) -> Iterator[list[float]]:
    if keep is None:
        yield from map(read, turns)
        return
    keep.parent.mkdir(parents=True, exist_ok=True)
    digest = blake2b("\0".join(text for turn in turns for text in turn).encode(), digest_size=16).hexdigest()
    with open_run(keep, {"reader": source, "captions": digest}) as run:
        done = run.done()
        known = dict(zip(done, (part[_COLUMN].to_pylist() for part in run.tables()), strict=True)) if done else {}
        for number, turn in enumerate(turns):
            if number not in known:
                known[number] = read(turn)
                run.write(number, pa.table({_COLUMN: pa.array(known[number], pa.float64())}))
            yield known[number]


def _load(source: str) -> Callable[[list[str]], list[float]]:
    import torch

    from msdscore.align.language import load_language_model
    from msdscore.align.recipe import LanguageSpec

    folder, _, name = source.rpartition("/")
    is_gguf = name.endswith(".gguf")
    spec = LanguageSpec(source=f"{folder or '.'}/", gguf=name) if is_gguf else LanguageSpec(source=source)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return load_language_model(spec, device=device).log_likelihoods
