"""The forms by name: built in, registered in this process, and those of installed packages."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from msdscore.core.evidence import Bank
from msdscore.errors import ConfigError
from msdscore.forms import evidence, paper
from msdscore.forms.base import Form
from msdscore.registry import Registry


@dataclass(frozen=True, slots=True)
class FormRow:
    """A form with its settings, by name."""

    name: str
    form: Form


@cache
def _built_in() -> tuple[FormRow, ...]:
    return tuple(FormRow(name, form) for module in (paper, evidence) for name, form in module.NAMED.items())


def _adapted(name: str, target: Any) -> FormRow | None:
    """Return the row of an imported form, or of a class of forms with settings that all have a default."""
    form = target() if isinstance(target, type) and issubclass(target, Form) else target
    return FormRow(name, form) if isinstance(form, Form) else None


FORMS = Registry("form", FormRow, _built_in, _adapted)
_used: dict[str, type[Form]] = {}  # classes of other packages, by module and name: a notebook may define one again


def register_form(name: str, form: Form) -> None:
    """Register a form for this process; a package registers its forms by an entry point `msdscore.forms`.

    Raises:
        ConfigError: another form has that name, or one of its columns has another meaning elsewhere.
    """
    check_form(form)
    FORMS.add(FormRow(name, form))


def forms() -> tuple[type[Form], ...]:
    """Return the classes of the forms that this process knows, the default one first."""
    return tuple(dict.fromkeys([*(type(row.form) for row in reversed(_built_in())), *_used.values()]))


def form_of(signature: str, columns: Collection[str]) -> type[Form] | None:
    """Return the class of the form that rows were scored with, by their signature, else by their columns.

    >>> form_of("msd|enc:toy@1", ()).__name__, form_of("", ["negation", "precision", "information"]).__name__
    ('Paper', 'Evidence')
    """
    name = signature.partition("|")[0]
    if name and all(form.name.lower() != name for form in forms()):
        for row in FORMS.rows().values():
            check_form(row.form)
    by_name = [form for form in forms() if form.name.lower() == name]
    names = set(columns)
    by_columns = (
        form for form in forms() if set(form.plotted) <= names and names & {column.name for column in form.table}
    )
    return next(iter(by_name), None) or next(by_columns, None)


def check_form(value: object) -> None:
    """Raise `ConfigError` unless the value is a form, the name of one or None; remember the class of a new form.

    A column of a form must not have another meaning in another form.
    """
    if not isinstance(value, Form | str | None):
        names = ", ".join(form.__name__ for form in forms())
        raise ConfigError(f"expected {names} or the name of a form, got {type(value).__name__}")
    if not isinstance(value, Form) or type(value) in forms():
        return
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    known = {column.name: column for other in forms() for column in other.table if other is not _used.get(name)}
    for column in value.table:
        if known.get(column.name, column) != column:
            raise ConfigError(f"{kind.__name__}: a column {column.name!r} with another meaning exists")
    _used[name] = kind


def find_form(name: str, **changes: Any) -> Form:
    """Return the form of that name, or of `module:attribute`, with some settings changed.

    >>> find_form("evidence", balance=0.25).facts()["balance"]
    '0.25'
    """
    form = FORMS.find(name).form
    check_form(form)
    return form.changed(**changes)


def form_of_bank(bank: Bank) -> Form | None:
    """Return the form that a bank was built for; None for a bank that fits any form."""
    return next((form for kind in forms() if (form := kind.of_bank(bank)) is not None), None)


def score_name(signature: str) -> str:
    """Return the name of the score in a signature.

    >>> score_name("msd-e|enc:mini@1|form:evidence"), score_name("msd|enc:toy@1|k:3,2"), score_name("")
    ('MSD-E', 'MSD', 'MSD')
    """
    name = signature.partition("|")[0] or paper.Paper.name
    return next((form.name for form in forms() if form.name.lower() == name.lower()), name.upper())


def facts_of(signature: str) -> dict[str, str]:
    """Parse a signature, which is all that a file of scores has about its scorer.

    >>> facts_of("msd|enc:toy@1|xi:0.2|v:1.0")
    {'enc': 'toy@1', 'xi': '0.2', 'v': '1.0'}
    """
    return dict(fact.partition(":")[::2] for fact in signature.split("|")[1:])
