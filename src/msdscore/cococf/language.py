"""A causal language model as a reader of captions without their images; what it has read is kept until all is."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from msdscore.io.outputs.run import discard, open_run

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
    model = _LazyModel(source)
    turns = [ordered[start : start + _TURN] for start in range(0, len(ordered), _TURN)]
    found: dict[str, float] = {}
    for turn, values in zip(turns, _answers(turns, model, keep, source), strict=True):
        found |= zip(turn, values, strict=True)
        progress(len(found), len(ordered))
    return found


def forget_likelihoods(keep: Path) -> None:
    """Throw away what a reading has kept."""
    discard(keep)


def _answers(turns: list[list[str]], model: "_LazyModel", keep: Path | None, source: str) -> Iterator[list[float]]:
    if keep is None:
        yield from map(model.read, turns)
        return
    keep.parent.mkdir(parents=True, exist_ok=True)
    digest = blake2b("\0".join(text for turn in turns for text in turn).encode(), digest_size=16).hexdigest()
    with open_run(keep, {"reader": source, "captions": digest}) as run:
        done = run.done()
        known = dict(zip(done, (part[_COLUMN].to_pylist() for part in run.tables()), strict=True)) if done else {}
        for number, turn in enumerate(turns):
            if number not in known:
                known[number] = model.read(turn)
                run.write(number, pa.table({_COLUMN: pa.array(known[number], pa.float64())}))
            yield known[number]


@dataclass(slots=True)
class _LazyModel:
    """Loaded when the first caption is to be read: a reading that is finished needs no weights."""

    source: str
    _read: Callable[[list[str]], list[float]] | None = None

    def read(self, texts: list[str]) -> list[float]:
        if self._read is None:
            self._read = _load(self.source)
        return [round(value, _DIGITS) for value in self._read(texts)]


def _load(source: str) -> Callable[[list[str]], list[float]]:
    import torch

    from msdscore.align.language import load_language_model
    from msdscore.align.recipe import LanguageSpec

    place, _, name = source.rpartition("/")
    is_gguf = name.endswith(".gguf")
    spec = LanguageSpec(source=f"{place or '.'}/", gguf=name) if is_gguf else LanguageSpec(source=source)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return load_language_model(spec, device=device).log_likelihoods
