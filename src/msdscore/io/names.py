"""Names of images in tables and files of references, matched with the paths that rows have."""

from pathlib import PurePosixPath

from msdscore.errors import ImageError, InputError, shortened


class ImageNames:
    """Names of images, matched with paths by their last parts: `val/1.jpg` is `/data/val/1.jpg`, and so is `1.jpg`.

    Images in different folders are different: `a/1.jpg` is not `b/1.jpg`.
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}  # file name up to its first dot -> names
        self._paths: dict[str, str] = {}  # name -> longest path that was matched with it

    def add(self, name: str) -> str:
        """Add a name; return it in normal form."""
        path = PurePosixPath(name)
        self._names.setdefault(path.name.partition(".")[0], {})[str(path)] = None
        return str(path)

    def find(self, path: str, *, any_suffix: bool = False) -> str | None:
        """Return the name of the image at this path, with `any_suffix` also `1.png` for `1.jpg`; None if it has none.

        Raises:
            ImageError: several names match.
            InputError: the name was matched with a path in another folder before.
        """
        wanted = str(PurePosixPath(path))
        names = self._names.get(PurePosixPath(path).name.partition(".")[0], {})
        matching = [wanted] if wanted in names else [name for name in names if _is_tail(name, wanted)]
        if any_suffix and not matching:
            bare = _without_suffix(wanted)
            matching = [name for name in names if _is_tail(name, bare) or _is_tail(_without_suffix(name), bare)]
        if len(matching) > 1:
            both = " and ".join(shortened(name) for name in matching[:2])
            raise ImageError(f"{shortened(path)} may be {both}; write the same folders in both files")
        if not matching:
            return None
        self._check(matching[0], _without_suffix(wanted) if any_suffix else wanted)
        return matching[0]

    def _check(self, name: str, path: str) -> None:
        earlier = self._paths.setdefault(name, path)
        if not _is_tail(earlier, path):
            raise InputError(
                f"{shortened(name)} may be the image {shortened(earlier)} or {shortened(path)}; write the folders of "
                "images with the same name"
            )
        self._paths[name] = max(earlier, path, key=len)


def _without_suffix(path: str) -> str:
    return path.removesuffix(PurePosixPath(path).suffix)


def _is_tail(first: str, second: str) -> bool:
    """Whether one of two paths is the end of the other.

    >>> _is_tail("a/1.jpg", "1.jpg"), _is_tail("a/1.jpg", "b/1.jpg"), _is_tail("11.jpg", "1.jpg")
    (True, False, False)
    """
    short, long = sorted((first, second), key=len)
    return long == short or long.endswith(f"/{short.removeprefix('/')}")
