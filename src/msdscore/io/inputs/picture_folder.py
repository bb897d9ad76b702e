"""Pictures of a folder, found by the id that a row names."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from msdscore.errors import ImageError, InputError, shortened

_SUFFIXES = re.compile(r"\.(jpe?g|jpe|jfif|png|webp|gif|bmp|tiff?|avif|hei[cf]|jp2|p[bgnp]m)", re.IGNORECASE)
# Behind a prefix only a padded number counts: "1_2.jpg" is not the picture of 2.
_NUMBER = re.compile(r"(?:[0-9]+|.*[_-][0-9]{8,})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,19}$")


def is_picture(path: Path) -> bool:
    """Whether a name says that a file is a picture; hidden files are none.

    >>> is_picture(Path("dog.JPG")), is_picture(Path(".dog.jpg")), is_picture(Path("dog.txt"))
    (True, False, False)
    """
    return _SUFFIXES.fullmatch(path.suffix) is not None and not path.name.startswith(".")


@dataclass(frozen=True, slots=True)
class PictureFolder:
    """The pictures lying directly in a folder, by name and by the number that ends their name.

    The picture of 42 may be called `42.jpg`, `000000000042.png` or `COCO_val2014_000000000042.jpg`. A text id
    is first taken as a name; a number fits all spellings alike. Where several pictures fit, none is chosen.
    """

    path: Path
    _stems: dict[str, list[str]] = field(init=False, repr=False)
    _numbers: dict[int, list[str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise InputError(f"{self.path}: no such folder of pictures")
        object.__setattr__(self, "_stems", defaultdict(list))
        object.__setattr__(self, "_numbers", defaultdict(list))

    def find(self, key: str | int) -> Path:
        """The one picture of this id, or an `ImageError` that says why there is none."""
        self._list_once()
        names = self._named(key) if isinstance(key, str) else self._numbered(key)
        if not names:
            raise ImageError(f"no picture for id {shortened(str(key))} in {self.path}")
        if len(names) > 1:
            raise ImageError(
                f"several pictures for id {shortened(str(key))} in {self.path}: {', '.join(sorted(names)[:4])}"
            )
        return self.path / names[0]

    def _named(self, key: str) -> list[str]:
        stem = key.rpartition(".")[0]
        if key in self._stems.get(stem, ()):
            return [key]
        if names := self._stems.get(key, []):
            return names
        return self._numbered(int(key)) if key.isascii() and key.isdigit() else []

    def _numbered(self, number: int) -> list[str]:
        return self._numbers.get(number, [])

    def _list_once(self) -> None:
        if self._stems:
            return
        for entry in self.path.iterdir():
            if is_picture(entry):
                self._stems[entry.stem].append(entry.name)
                if _NUMBER.fullmatch(entry.stem) and (digits := _DIGITS.search(entry.stem)):
                    self._numbers[int(digits[0])].append(entry.name)
