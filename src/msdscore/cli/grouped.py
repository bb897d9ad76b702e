"""Options in groups: a command takes a dataclass, the command line has its fields."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with every parameter that is a dataclass replaced by the dataclass's fields, in its place.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     width: int
    ...     height: int = 2
    >>> def area(name: str, size: Size) -> str:
    ...     return f"{name}: {size.width * size.height}"
    >>> list(inspect.signature(grouped(area)).parameters), grouped(area)(name="door", width=3, height=2)
    (['name', 'width', 'height'], 'door: 6')
    """
    parameters = list(inspect.signature(command).parameters.values())
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

    def flat(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return command(**given)

    shown = [
        option
        for one in parameters
        for option in (options_of(groups[one.name]) if one.name in groups else [_keyword(one)])
    ]
    return as_shown(flat, command, shown)


def options_of(kind: type[Any]) -> list[inspect.Parameter]:
    """One parameter per field; an empty tuple, which a frozen dataclass needs, is an empty list to the command line."""
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field.default), annotation=field.type
        )
        for field in fields(kind)
    ]


def as_shown(
    flat: Callable[..., Any], command: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """`flat` under the name and the words of a command, with the parameters that the command line reads."""
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {}
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    return flat


def _keyword(one: inspect.Parameter) -> inspect.Parameter:
    return one.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _default(given: Any) -> Any:
    if given is MISSING:
        return inspect.Parameter.empty
    return [] if given == () else given
