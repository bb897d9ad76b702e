"""Decoded images, and batches of embedded images and captions with an error for each item that failed."""

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
# The batch, the row of every item, and the errors of the items without a row.
SortedOut = tuple[Embeddings | None, tuple[int | None, ...], dict[int, RowError]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image ready for the encoder.

    `key` is computed from the pixels if it seeds the starts of mixtures, else 0. `image` is the decoded image if it was
    requested.
    """

    prepared: Prepared
    key: int = 0
    image: Image | None = None


def open_prepared(
    source: ImageSource, prepare: Prepare, *, steps: Preprocessing | None, limits: ImageLimits, name: str | None = None
) -> Prepared:
    """Decode and prepare an image; a file is read by `read_pixels` if the `steps` require it."""
    if steps is None or not (steps.reduced or steps.jpeg_on_device) or not isinstance(source, File):
        return prepare(open_image(source, limits=limits, name=name))
    return as_prepared(*read_pixels(source, steps=steps, limits=limits, name=name))


def require_some(decoded: Iterable[Decoded | RowError]) -> None:
    """Raise `InputError` if no image can be read, with the error of the first; stop at the first readable one."""
    errors: list[RowError] = []
    for item in decoded:
        if not isinstance(item, RowError):
            return
        errors.append(item)
    if errors:
        raise InputError(f"none of {len(errors)} images can be read; the first: {errors[0]}")


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded items: item i is row `rows[i]` of `batch`, or has an error in `reasons`; equal captions share a row.

    `keys` has one key per row, `captions` one text per row (none for images). `batch` is None if no item could be
    embedded.
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
        """The batch; at least one item must have been embedded."""
        assert self.batch is not None, "no item was embedded; check the errors first"
        return self.batch

    def row(self, item: int) -> int:
        """Return the row of an item that was embedded."""
        row = self.rows[item]
        assert row is not None, f"item {item} was not embedded: {self.reasons[item]}"
        return row

    def require(self) -> "Embedded":
        """Return itself, or raise the first error if an item could not be embedded."""
        if self.reasons:
            raise self.reasons[min(self.reasons)]
        return self


def sort_out(items: Sequence[Item | RowError], encode: Callable[[Sequence[Item]], Embeddings]) -> SortedOut:
    """Embed items; return the batch, the row of every item, and an error for each item without a row.

    If the encoder rejects the batch, each item is encoded separately to find the invalid ones.
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
    row_of = {number: row for row, number in enumerate(number for number in whole if number not in reasons)}
    return join(batches) if batches else None, tuple(row_of.get(number) for number in range(len(items))), reasons


def without_empty(
    texts: Sequence[str | RowError],
    batch: Embeddings,
    rows: Sequence[int | None],
    reasons: Mapping[int, RowError],
) -> SortedOut:
    """Remove captions without tokens; each gets an error."""
    filled = batch.mask.any(dim=1).tolist() if batch.filled is None else batch.filled
    empty = {number for number, row in enumerate(rows) if row is not None and not filled[row]}
    if not empty:
        return batch, tuple(rows), dict(reasons)
    filled_items = [number for number, row in enumerate(rows) if row is not None and number not in empty]
    row_of = {number: row for row, number in enumerate(filled_items)}
    errors = {
        number: CaptionError(f"the caption {str(texts[number])[:40]!r} has no words that the encoder can read")
        for number in empty
    }
    chosen = [row for number in filled_items if (row := rows[number]) is not None]
    rest = take(batch, chosen) if chosen else None
    return rest, tuple(row_of.get(number) for number in range(len(rows))), {**reasons, **errors}
