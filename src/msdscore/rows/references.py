"""Reference captions of images, from a file of their own."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.files import file_key
from msdscore.io.images import from_cell
from msdscore.io.names import ImageNames
from msdscore.rows.formats import open_records
from msdscore.rows.rules import IMAGE_NAMES, KEY_NAMES, REFERENCES, SEVERAL, first_of, read_references

_TEXTS = (REFERENCES, SEVERAL, "caption")  # columns of a file of references
_IMAGE_ID, *_ROW_IDS = KEY_NAMES


class ReferenceFile:
    """References by image: COCO annotations, JSON lines with an image or id and `references`, or an object id → list.

    An image is identified by its path, with or without suffix, or by its `image_id`; rows of one image are merged.
    The `id` of a row is that of its image only if the row has neither column; else it is that of an annotation.
    With `by_row`, references belong to the row with the same `id`, whatever its image is.
    """

    def __init__(self, path: str | Path, *, by_row: bool = False) -> None:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; expected a file of references")
        self.path, self.fingerprint = Path(path), file_key(Path(path))
        self._by_row = by_row
        self._by_name: dict[str, list[str]] = {}
        self._by_id: dict[str, list[str]] = {}
        self._names = ImageNames()
        self.without = set[str]()  # images that were looked up in vain
        with ExitStack() as stack:
            for number, record in enumerate(open_records(path, format=None, until=stack).read(), start=1):
                name = first_of(record.values, _TEXTS)
                image, key = self._keys(record.values)
                if record.error or name is None or (image is None and key is None):
                    wanted = "an image or id, and references, captions or caption"
                    raise InputError(f"{path}: item {number}: {record.error or f'expected {wanted}'}")
                texts = [text for text in read_references(record.values[name]) or () if isinstance(text, str)]
                if image is not None:
                    self._by_name.setdefault(self._names.add(image), []).extend(texts)
                if key is not None:
                    self._by_id.setdefault(key, []).extend(texts)
                    if image is None and not by_row:  # such as {"dog.jpg": […]}
                        self._names.add(key)
        if not any(self._by_name.values()) and not any(self._by_id.values()):
            raise InputError(f"{path}: no references in this file")

    def find(self, values: Mapping[str, Any]) -> list[str] | None:
        """Return the references of a row's image; None if the file has none.

        Raises:
            ImageError: the image may be one of several in the file.
            InputError: images in several folders have the name of one in the file.
        """
        image, key = self._keys(values)
        references = None
        if image is not None and (name := self._names.find(image, any_suffix=True)) is not None:
            references = self._by_name.get(name) or self._by_id.get(name)
        if references is None and key is not None:
            references = self._by_id.get(key)
        if references is None and (image or key):
            self.without.add(image or key or "")
        return references

    def _keys(self, values: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """Return the path and the id of a row's image; the path is None if it has none, or if rows are joined by id."""
        if self._by_row:
            return None, next(_ids(values, _ROW_IDS), None)
        column = first_of(values, IMAGE_NAMES)
        cell = None if column is None else from_cell(values[column])
        image = cell if isinstance(cell, str) and cell else None
        return image, next(_ids(values, KEY_NAMES if column is None else (_IMAGE_ID,)), None)

    def __len__(self) -> int:
        return len(self._by_name) or len(self._by_id)

    @property
    def example(self) -> str:
        """One of the images of the file."""
        return next(iter(self._by_name or self._by_id), "")


def _ids(values: Mapping[str, Any], names: list[str] | tuple[str, ...]) -> Iterator[str]:
    for name in names:
        key = values.get(name)
        if isinstance(key, float) and key.is_integer():
            key = int(key)
        if isinstance(key, str | int) and not isinstance(key, bool) and key != "":
            yield str(key)
