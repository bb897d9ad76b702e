"""The table of columns: everything that scoring adds to a row, in the order of output files.

Files, tables, logs, reports, pages and the documentation read this table. Columns of a form are in the file of the
form, those of scores with references in `references`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msdscore.forms.base import Column, Form
from msdscore.forms.references import TABLE
from msdscore.forms.registry import forms, score_name

FIRST = (Column("similarity", "similarity", "cosine of the whole caption and image", "+.4f", shown=4, logged=3),)
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
    return {column.name: column for column in (*FIRST, *own, *TABLE, *LAST)}


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


def added(form: Form | type[Form], *, references: bool = False) -> tuple[str, ...]:
    """Return the columns that scoring with a form adds to a row, with or without references.

    >>> from msdscore.forms.paper import Paper
    >>> added(Paper())[:3]
    ('similarity', 'coverage', 'support')
    """
    return tuple(column.name for column in (*FIRST, *form.table, *(TABLE if references else ()), *LAST))


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
