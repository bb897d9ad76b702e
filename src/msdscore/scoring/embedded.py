"""Images and captions on their way to vectors: decoded, then a row of a batch for each, or the reason why not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from PIL.Image import Image

from msdscore.core.embeddings import join, take
from msdscore.encoders.base import Embeddings, Prepared
from msdscore.encoders.vision.canvas import read_pixels
from msdscore.encoders.vision.preprocessing import Preprocessing, as_prepared
from msdscore.errors import CaptionError, InputError, RowError
from msdscore.io.images import ImageLimits, ImageSource, open_image
from msdscore.io.tar import File

Item = TypeVar("Item")
Prepare: TypeAlias = Callable[[Image], Prepared]
# The batch, the row of every item, and the reasons of the items that have none.
SortedOut = tuple[Embeddings | None, tuple[int | None, ...], dict[int, RowError]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image ready for the encoder.

    `key` is made from the pixels where starts are drawn by them, else 0. `image` is the decoded image where it
    was asked to be kept.
    """

    prepared: Prepared
    key: int = 0
    image: Image | None = None


def open_prepared(
    source: ImageSource, prepare: Prepare, *, steps: Preprocessing | None, limits: ImageLimits, name: str | None = None
) -> Prepared:
    """An image decoded and made ready; a file as `read_pixels` gives it, where the `steps` ask for that."""
    if steps is None or not (steps.reduced or steps.jpeg_on_device) or not isinstance(source, File):
        return prepare(open_image(source, limits=limits, name=name))
    return as_prepared(*read_pixels(source, steps=steps, limits=limits, name=name))


def require_some(decoded: Iterable[Decoded | RowError]) -> None:
    """Refuse images none of which can be read, with the reason of the first; with the first that can, it is done."""
    reasons: list[RowError] = []
    for one in decoded:
        if not isinstance(one, RowError):
            return
        reasons.append(one)
    if reasons:
        raise InputError(f"none of {len(reasons)} images can be read; the first: {reasons[0]}")


@dataclass(frozen=True, slots=True)
class Embedded:
    """Items as vectors: item i is row `rows[i]` of `batch`, or has a reason in `reasons`; equal captions share a row.

    `keys` holds one key per row, `captions` one text per row (none for images). `batch` is None where
    no item could be embedded.
    """

    batch: Embeddings | None
    rows: tuple[int | None, ...]
    reasons: Mapping[int, RowError]
    keys: tuple[int, ...]
    captions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> Embeddings:
        """The batch, where at least one item could be embedded."""
        assert self.batch is not None, "no item was embedded; look at the reasons first"
        return self.batch

    def row(self, item: int) -> int:
        """The row of an item that was embedded."""
        row = self.rows[item]
        assert row is not None, f"item {item} was not embedded: {self.reasons[item]}"
        return row

    def require(self) -> "Embedded":
        """Itself, where every item was embedded; else the first reason is raised."""
        if self.reasons:
            raise self.reasons[min(self.reasons)]
        return self


def sort_out(items: Sequence[Item | RowError], encode: Callable[[Sequence[Item]], Embeddings]) -> SortedOut:
    """Embed what can be embedded; returns the batch, the row of every item, and a reason for each item without one.

    If the encoder refuses the batch, each item is tried alone to find out which one it was.
    """
    reasons = {number: item for number, item in enumerate(items) if isinstance(item, RowError)}
    whole = {number: item for number, item in enumerate(items) if not isinstance(item, RowError)}
    batches: list[Embeddings] = []
    try:
        batches += [encode(list(whole.values()))] if whole else []
    except RowError:
        for number, item in whole.items():
            try:
                batches.append(encode([item]))
            except RowError as error:
                reasons[number] = error
    kept = {number: row for row, number in enumerate(number for number in whole if number not in reasons)}
    return join(batches) if batches else None, tuple(kept.get(number) for number in range(len(items))), reasons


def without_empty(
    texts: Sequence[str | RowError],
    batch: Embeddings,
    rows: Sequence[int | None],
    reasons: Mapping[int, RowError],
) -> SortedOut:
    """Leave out captions in which the encoder found no token; each gets a reason."""
    filled = batch.mask.any(dim=1).tolist() if batch.filled is None else batch.filled
    empty = {number for number, row in enumerate(rows) if row is not None and not filled[row]}
    if not empty:
        return batch, tuple(rows), dict(reasons)
    kept = [number for number, row in enumerate(rows) if row is not None and number not in empty]
    place = {number: row for row, number in enumerate(kept)}
    why = {
        number: CaptionError(f"the caption {str(texts[number])[:40]!r} holds no words that the encoder can read")
        for number in empty
    }
    chosen = take(batch, [row for number in kept if (row := rows[number]) is not None]) if kept else None
    return chosen, tuple(place.get(number) for number in range(len(rows))), {**reasons, **why}
