"""The forms by name: built in, registered in this process, and those of installed packages; and all their columns.

`COLUMNS` is everything that scoring adds to a row, in the order of output files; files, tables, logs, reports, pages
and the documentation read it. Columns of a form are in the file of the form.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from msdscore.core.evidence import Bank
from msdscore.errors import ConfigError
from msdscore.forms import evidence, paper
from msdscore.forms.base import Column, Form
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


FIRST = (Column("similarity", "similarity", "cosine of the whole caption and image", "+.4f", shown=4, logged=3),)
REFERENCE_COLUMNS = (
    Column("reference_count", "references", "number of references", ".0f"),
    Column("reference_similarity", "ref similarity", "sentence similarity with the references", "+.3f", shown=11),
    Column("reference_support", "ref support", "do the references say what the caption says?", "+.3f", shown=12),
    Column("reference_coverage", "ref coverage", "does the caption say what the references say?", "+.3f", shown=13),
    Column("reference_score", "ref score", "weighted sum of the three", "+.4f"),
    Column("ref_msd", "Ref-MSD", "MSD plus the reference score", "+.4f", shown=1),
)
LAST = (
    Column("uncertainty", "uncertainty", "of the candidate set: 1 if similarities do not separate it"),
    Column("length", "length", "number of tokens that were read", kind="count"),
    Column("windows", "windows", "number of parts in which a long caption was read", kind="count"),
    Column("msd", "MSD", "the score of the pair", "+.4f", shown=3, logged=1),
    Column("soft_msd", "Soft-MSD", "the score within the candidate set", "+.4f", shown=2),
    Column("match", "match", "probability that the caption belongs to the image", ".2f", shown=14, logged=2),
    Column("verdict", "verdict", "the match as a word", kind="text", shown=15),
    Column("word_notes", "word notes", "the words in doubt, or that no word stands out", kind="list"),
    Column("language", "language", "the language of the caption, if it can be told", kind="text"),
    Column("warnings", "warnings", "remarks on the caption and the image", kind="list"),
    Column("error", "error", "why the row was not scored", kind="text"),
)


class _Columns(Mapping[str, Column]):
    """Every column by name; those of a form that is registered later are included."""

    def __getitem__(self, name: str) -> Column:
        return _table(forms())[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_table(forms()))

    def __len__(self) -> int:
        return len(_table(forms()))


@lru_cache(maxsize=1)
def _table(classes: tuple[type[Form], ...]) -> dict[str, Column]:
    own = [column for form in reversed(classes) for column in form.table]
    return {column.name: column for column in (*FIRST, *own, *REFERENCE_COLUMNS, *LAST)}


COLUMNS: Mapping[str, Column] = _Columns()


def lower_is_better() -> frozenset[str]:
    """Return the names of the columns of which lower values are better."""
    return frozenset(column.name for column in COLUMNS.values() if column.lower_is_better)


def columns_shown() -> tuple[str, ...]:
    """Return the columns of a table of scores, in order."""
    return tuple(column.name for column in sorted(COLUMNS.values(), key=lambda column: column.shown) if column.shown)


def columns_logged() -> tuple[str, ...]:
    """Return the columns of the logs of training and evaluation, in order."""
    return tuple(column.name for column in sorted(COLUMNS.values(), key=lambda column: column.logged) if column.logged)


def score_columns(form: Form | type[Form], *, references: bool = False) -> tuple[Column, ...]:
    """Return the columns that scoring with a form adds to a row, with or without references."""
    return (*FIRST, *form.table, *(REFERENCE_COLUMNS if references else ()), *LAST)


def added(form: Form | type[Form], *, references: bool = False) -> tuple[str, ...]:
    """Return the names of `score_columns`.

    >>> from msdscore.forms.paper import Paper
    >>> added(Paper())[:3]
    ('similarity', 'coverage', 'support')
    """
    return tuple(column.name for column in score_columns(form, references=references))


def number_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of the columns that are numbers.

    >>> number_columns(["msd", "length", "verdict"])
    ('msd', 'length')
    """
    return tuple(name for name in columns if COLUMNS[name].kind in ("number", "count"))


def heading(column: str, signature: str) -> str:
    """Return the heading of a column in tables of scores with this signature.

    >>> heading("soft_msd", "msd-e|enc:mini@1|form:evidence"), heading("msd", "msd|enc:toy@1"), heading("human", "")
    ('Soft-MSD-E', 'MSD', 'human')
    """
    return COLUMNS[column].heading.replace("MSD", score_name(signature)) if column in COLUMNS else column
