"""Photographs that come with the package, for examples and the demo; NOTICE names their authors and licences."""

from pathlib import Path

from msdscore.errors import unknown_name

_FOLDER = Path(__file__).parent / "photographs"
_FILES = {
    "cat": "chelsea",
    **{name: name for name in ("coffee", "flower", "photographer", "temple", "towers")},
}


def sample_image(name: str) -> Path:
    """Return the path of a sample photograph: cat, coffee, flower, photographer, temple or towers.

    >>> sample_image("cat").suffix
    '.jpg'

    Raises:
        UnknownNameError: there is no such photograph.
    """
    if name not in _FILES:
        raise unknown_name("sample image", name, _FILES)
    return _FOLDER / f"{_FILES[name]}.jpg"
