"""Many items through an encoder: in batches, short texts with short ones, joined again in order, and kept for a run."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

import torch

from msdscore.core.embeddings import Embeddings, join, take

Item = TypeVar("Item")


def encode_in_batches(
    items: Sequence[Item],
    encode: Callable[[Sequence[Item]], Embeddings],
    *,
    size: int,
    smaller: Callable[[int], None] = lambda size: None,
) -> Embeddings:
    """Embeddings of all items, `size` at a time; batches are halved each time the device's memory runs out.

    `smaller` is called with every new size.
    """
    batches: list[Embeddings] = []
    start = 0
    while start < len(items):
        try:
            batches.append(encode(items[start : start + size]))
        except torch.OutOfMemoryError:
            size = min(size, len(items) - start) // 2
            if size == 0:
                raise
            torch.cuda.empty_cache()
            smaller(size)
        else:
            start += size
    return join(batches)


def encode_by_length(texts: Sequence[str], encode: Callable[[Sequence[str]], Embeddings], *, size: int) -> Embeddings:
    """Embeddings of all texts, encoded in order of their length, so that little is padded."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    joined = encode_in_batches([texts[number] for number in order], encode, size=size)
    back = [0] * len(order)
    for place, number in enumerate(order):
        back[number] = place
    return take(joined, back)


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
            parts: dict[int, dict[str, int]] = {}
            for text, (number, row) in known.items():
                parts.setdefault(number, {})[text] = row
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
        self._bytes += batch.nbytes
        while self._bytes > self._limit:
            number, (dropped, gone) = self._batches.popitem(last=False)
            self._bytes -= dropped.nbytes
            for text in gone:
                if self._place[text][0] == number:
                    del self._place[text]
