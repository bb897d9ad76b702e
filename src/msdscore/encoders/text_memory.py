"""Texts of a run embedded once, however often they come: whole batches are kept, and rows taken from them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from msdscore.encoders.base import Embeddings
from msdscore.encoders.batches import join, take

_BYTES = 256 << 20


class TextMemory:
    """The batches of texts that were embedded last, up to a number of bytes; may be used by several threads.

    Nothing is copied for a text that was never met before, and nothing waits for the device.
    """

    def __init__(self, limit: int = _BYTES) -> None:
        self._limit, self._bytes, self._number = limit, 0, 0
        self._batches: OrderedDict[int, tuple[Embeddings, tuple[str, ...]]] = OrderedDict()
        self._place: dict[str, tuple[int, int]] = {}  # number of the batch, row in it
        self._lock = Lock()

    def recall(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Embeddings]) -> Embeddings:
        """The vectors of distinct texts, in order; those that are not known go through `encode`."""
        with self._lock:
            known = {text: self._place[text] for text in texts if text in self._place}
            missing = tuple(text for text in texts if text not in known)
            if not known:
                fresh = encode(missing)
                self._keep(fresh, missing)
                return fresh
            parts = _rows_by_batch(known)
            found = [take(self._batches[number][0], list(rows.values())) for number, rows in parts.items()]
            for number in parts:
                self._batches.move_to_end(number)
            if missing:
                found.append(encode(missing))
                self._keep(found[-1], missing)
        order = [text for rows in parts.values() for text in rows] + list(missing)
        place = {text: row for row, text in enumerate(order)}
        return take(join(found), [place[text] for text in texts])

    def _keep(self, batch: Embeddings, texts: tuple[str, ...]) -> None:
        self._batches[self._number] = (batch, texts)
        self._place.update((text, (self._number, row)) for row, text in enumerate(texts))
        self._number += 1
        self._bytes += _size(batch)
        while self._bytes > self._limit:
            number, (dropped, gone) = self._batches.popitem(last=False)
            self._bytes -= _size(dropped)
            for text in gone:
                if self._place[text][0] == number:
                    del self._place[text]


def _rows_by_batch(places: dict[str, tuple[int, int]]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for text, (number, row) in places.items():
        found.setdefault(number, {})[text] = row
    return found


def _size(batch: Embeddings) -> int:
    return batch.points.nbytes + batch.mask.nbytes + batch.pooled.nbytes
