"""The command that installs a distribution of msdscore, from the registry or from the checkout that is in use."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The folders of the distributions in a checkout; each requires only some before it.
_FOLDERS = {
    "msdscore-mini": "weights",
    "msdscore": ".",
    "msdscore-torch": "backbones",
    "msdscore-serve": "serve",
    "msdscore-lab": "lab",
}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?")


def install_line(requirement: str) -> str:
    """Return the command that installs a distribution, or one with extras, as `name[extra]`.

    If msdscore was installed from a checkout, the command installs from it: a registry may not have the version.

    >>> install_line("another-package"), install_line("msdscore[no-such-extra]")
    ('pip install another-package', "pip install 'msdscore[no-such-extra]'")
    """
    root, editable = _checkout()
    needed = [] if root is None else list(dict.fromkeys(_needed(root, requirement)))
    if root is None or not needed:
        return f"pip install {shlex.quote(requirement)}"
    wanted, bracket, extras = requirement.partition("[")
    words = ["pip", "install"]
    for name in sorted(set(needed), key=list(_FOLDERS).index):
        if name == wanted or not _is_installed(name):
            place = f"{root / _FOLDERS[name]}" + (bracket + extras if name == wanted else "")
            words += [*["-e"] * editable, shlex.quote(place)]
    return " ".join(words)


def _checkout() -> tuple[Path | None, bool]:
    """The checkout that msdscore runs from, or was installed from, and whether it runs there; None without one."""
    own = source = Path(__file__).parents[2]
    with suppress(PackageNotFoundError, ValueError, KeyError):
        facts = json.loads(distribution("msdscore").read_text("direct_url.json") or "{}")
        source = Path(url2pathname(urlsplit(facts["url"]).path))
    for root in (own, source):
        if (root / _FOLDERS["msdscore-torch"] / "pyproject.toml").is_file():
            return root, root == own
    return None, False


def _needed(root: Path, requirement: str) -> Iterator[str]:
    """Yield the distributions of a checkout that a requirement needs, itself first; none if it has no such extra."""
    match = _REQUIREMENT.match(requirement)
    if match is None or match[1] not in _FOLDERS:
        return
    project = tomllib.loads((root / _FOLDERS[match[1]] / "pyproject.toml").read_text("utf-8"))["project"]
    optional, extras = project.get("optional-dependencies", {}), match[2].split(",") if match[2] else []
    if optional.keys() >= set(extras):
        yield match[1]
        for text in (*project["dependencies"], *(text for extra in extras for text in optional[extra])):
            yield from _needed(root, text)


def _is_installed(name: str) -> bool:
    with suppress(PackageNotFoundError):
        return bool(distribution(name).metadata)
    return False
