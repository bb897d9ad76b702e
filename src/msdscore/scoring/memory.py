"""Captions encoded once within a run, however many pictures they meet."""

from collections.abc import Callable, Sequence

from msdscore.encoders.base import Embeddings
from msdscore.scoring.batches import join, take

_LIMIT = 512 << 20  # bytes of vectors that are kept


class TextMemory:
    """Embeddings of texts by text; the oldest are forgotten where memory runs out."""

    def __init__(self, encode: Callable[[Sequence[str]], Embeddings], *, limit: int = _LIMIT) -> None:
        self._encode = encode
        self._limit = limit
        self._known: dict[str, Embeddings] = {}
        self._bytes = 0

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings of texts in their order; raises `RowError` for one that the encoder refuses."""
        missing = list(dict.fromkeys(text for text in texts if text not in self._known))
        fresh = dict(zip(missing, _split(self._encode(missing)), strict=True)) if missing else {}
        wanted = join([fresh.get(text) or self._known[text] for text in texts])
        self._keep(fresh)
        return wanted

    def _keep(self, fresh: dict[str, Embeddings]) -> None:
        self._known |= fresh
        self._bytes += sum(map(_size, fresh.values()))
        while self._bytes > self._limit:
            self._bytes -= _size(self._known.pop(next(iter(self._known))))


def _split(batch: Embeddings) -> list[Embeddings]:
    """Every item alone, without the padding behind its last point."""
    widths = [int(row.nonzero().max()) + 1 if bool(row.any()) else 1 for row in batch.mask]
    singles = (take(batch, [number]) for number in range(len(batch)))
    return [
        Embeddings(one.points[:, :width].clone(), one.mask[:, :width].clone(), one.pooled, one.layout)
        for one, width in zip(singles, widths, strict=True)
    ]


def _size(one: Embeddings) -> int:
    return one.points.nbytes + one.pooled.nbytes
