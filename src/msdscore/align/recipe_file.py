"""Recipes as TOML: shipped ones by name, anyone's by path, single settings on top, and back to TOML."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from msdscore.align.recipe import Recipe
from msdscore.encoders.aligned.towers import plain, read_spec
from msdscore.errors import ConfigError, InputError, unknown_name


def list_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with the package.

    >>> list_recipes()
    ('mini', 'paper')
    """
    return tuple(
        sorted(path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml"))
    )


def load_recipe(name: str | Path, *, changes: Iterable[str] = (), no_reconstruction: bool = False) -> Recipe:
    """A recipe by name or from a TOML file, with changes such as `train.steps=100`.

    >>> load_recipe("paper", changes=["train.lr=0.002"]).train.lr
    0.002

    Raises:
        UnknownNameError: no such recipe or setting.
        InputError: the file is not TOML.
        ConfigError: a setting that cannot work.
    """
    values = _read(name)
    for change in changes:
        _set(values, change)
    if no_reconstruction:
        values.setdefault("loss", {})["reconstruction"] = 0.0
    return recipe_from(values)


def recipe_from(values: Mapping[str, Any]) -> Recipe:
    """A recipe from the tables of a TOML document."""
    return read_spec(Recipe, values)


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as TOML, every setting written out; loading it gives the same recipe."""
    return _dump(plain(recipe), ())


def _shipped() -> Any:
    return files("msdscore") / "recipes"


def _read(name: str | Path) -> dict[str, Any]:
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise InputError(f"there is no recipe file {str(name)!r}; shipped recipes are {', '.join(list_recipes())}")
        text = path.read_text(encoding="utf-8")
    else:
        if str(name) not in list_recipes():
            raise unknown_name("recipe", str(name), list_recipes())
        text = (_shipped() / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not valid TOML ({error})") from error


def _set(values: dict[str, Any], change: str) -> None:
    """Change one setting in place, as in `heads.image.kind=mlp`."""
    key, sign, given = change.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"a change should look like train.steps=100, got {change!r}")
    *tables, last = key.strip().split(".")
    for name in tables:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key.strip()!r} is no setting: {name!r} is a value, not a table")
    values[last] = _parse(given.strip())


def _parse(given: str) -> Any:
    """A TOML value; what is none is a text, so that quotes can be left out."""
    try:
        return tomllib.loads(f"value = {given}")["value"]
    except tomllib.TOMLDecodeError:
        return given


def _dump(values: Mapping[str, Any], place: tuple[str, ...]) -> str:
    own = [f"{key} = {_value(item)}" for key, item in values.items() if not isinstance(item, dict)]
    tables = [_dump(item, (*place, key)) for key, item in values.items() if isinstance(item, dict)]
    head = [f"[{'.'.join(place)}]"] if place else []
    return "\n".join([*head, *own, ""]) + ("\n" if tables else "") + "\n".join(tables)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON spells texts, numbers and truth as TOML does.
    return json.dumps(value, ensure_ascii=True)
