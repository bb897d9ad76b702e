"""Files of reference captions, joined with rows by their image."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.hashing import file_key
from msdscore.io.inputs.columns import IMAGE_NAMES, KEY_NAMES, REFERENCES, SEVERAL, first_of, read_references
from msdscore.io.inputs.formats import open_records

_TEXTS = (REFERENCES, SEVERAL, "caption")


class ReferenceFile:
    """References by image: COCO annotations, JSON lines with an image or id and `references`, or an object id → list.

    An image is identified by its file name with or without suffix, or by its id. Rows of one image are merged.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; expected a file of references")
        self.path, self.fingerprint = Path(path), file_key(Path(path))
        self._lists: dict[str, list[str]] = {}
        with ExitStack() as stack:
            for number, record in enumerate(open_records(path, format=None, until=stack).read(), start=1):
                name = first_of(record.values, _TEXTS)
                keys = list(_keys(record.values))
                if record.error or name is None or not keys:
                    wanted = "an image or id, and references, captions or caption"
                    raise InputError(f"{path}: item {number}: {record.error or f'expected {wanted}'}")
                texts = [text for text in read_references(record.values[name]) or () if isinstance(text, str)]
                for key in dict.fromkeys(keys):
                    self._lists.setdefault(key, []).extend(texts)

    def __len__(self) -> int:
        return len(self._lists)

    def find(self, values: Mapping[str, Any]) -> list[str] | None:
        """Return the references of a row's image; None if the file has none."""
        return next((self._lists[key] for key in _keys(values) if key in self._lists), None)


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the possible keys of a row's image, the most specific first."""
    image = first_of(values, IMAGE_NAMES)
    cell = None if image is None else values[image]
    cell = cell.get("path") if isinstance(cell, Mapping) else cell
    if isinstance(cell, str) and cell:
        yield Path(cell).name
        yield Path(cell).stem
    for name in KEY_NAMES:
        if isinstance(key := values.get(name), str | int) and not isinstance(key, bool):
            yield str(key)
