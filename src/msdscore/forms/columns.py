"""The table of columns: everything that scoring adds to a row, in the order of output files.

Files, tables, logs, reports, pages and the documentation read this table. A column of a `group` other than `shared`
belongs to scores of that form, or to scores with references.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Group = Literal["shared", "paper", "evidence", "references"]


class Column(NamedTuple):
    """One column: its name in files, its heading and number format in tables, and its meaning in a few words.

    `kind` is its type in files. `shown` and `logged` are its positions, from 1 on, in tables of scores and in the logs
    of training and evaluation; 0 excludes it.
    """

    name: str
    heading: str
    meaning: str
    format: str = ""
    group: Group = "shared"
    kind: Literal["number", "count", "text", "list"] = "number"
    lower_is_better: bool = False
    shown: int = 0
    logged: int = 0


TABLE = (
    Column("similarity", "similarity", "cosine of the whole caption and image", "+.4f", shown=4, logged=3),
    Column(
        "coverage", "coverage", "divergence, nats: what is not mentioned", ".4f", "paper",
        lower_is_better=True, shown=5, logged=8,
    ),
    Column(
        "support", "support", "divergence, nats: what is invented", ".4f", "paper",
        lower_is_better=True, shown=6, logged=9,
    ),
    Column("beta", "beta", "weight of coverage", group="paper"),
    Column("divergence", "divergence", "coverage and support, weighted by beta", group="paper", lower_is_better=True),
    Column(
        "negation", "negation", "similarity that comes from negated words", ".3f", "evidence",
        lower_is_better=True, shown=7, logged=4,
    ),
    Column("precision", "precision", "is what is said true of the image?", "+.3f", "evidence", shown=8, logged=5),
    Column("information", "information", "how much is said about the image?", "+.3f", "evidence", shown=9, logged=6),
    Column(
        "penalty", "penalty", "what doubtful words subtract, before the weight", group="evidence", lower_is_better=True
    ),
    Column(
        "invented", "invented", "expected share of false words", ".2f", "evidence",
        lower_is_better=True, shown=10, logged=7,
    ),
    Column("familiarity", "familiarity", "nearness of the image to captions of known images", group="evidence"),
    Column("reference_count", "references", "number of references", ".0f", "references"),
    Column(
        "reference_similarity", "ref similarity", "sentence similarity with the references", "+.3f", "references",
        shown=11,
    ),
    Column(
        "reference_support", "ref support", "do the references say what the caption says?", "+.3f", "references",
        shown=12,
    ),
    Column(
        "reference_coverage", "ref coverage", "does the caption say what the references say?", "+.3f", "references",
        shown=13,
    ),
    Column("reference_score", "ref score", "weighted sum of the three", "+.4f", "references"),
    Column("ref_msd", "Ref-MSD", "MSD plus the reference score", "+.4f", "references", shown=1),
    Column("uncertainty", "uncertainty", "of the candidate set: 1 if similarities do not separate it"),
    Column("length", "length", "number of tokens that were read", kind="count"),
    Column("windows", "windows", "number of parts in which a long caption was read", kind="count"),
    Column("msd", "MSD", "the score of the pair", "+.4f", shown=3, logged=1),
    Column("soft_msd", "Soft-MSD", "the score within the candidate set", "+.4f", shown=2),
    Column("match", "match", "probability that the caption belongs to the image", ".2f", shown=14, logged=2),
    Column("verdict", "verdict", "the match as a word", kind="text", shown=15),
    Column("warnings", "warnings", "remarks on the caption and the image", kind="list"),
    Column("error", "error", "why the row was not scored", kind="text"),
)  # fmt: skip
COLUMNS = {column.name: column for column in TABLE}
LOWER_IS_BETTER = frozenset(column.name for column in TABLE if column.lower_is_better)
# Columns of a table of scores and of logs, in their order.
SHOWN = tuple(column.name for column in sorted(TABLE, key=lambda column: column.shown) if column.shown)
LOGGED = tuple(column.name for column in sorted(TABLE, key=lambda column: column.logged) if column.logged)


def names(*groups: Group) -> tuple[str, ...]:
    """Return the names of the columns of some groups, or of all, in the order of files.

    >>> names("evidence")
    ('negation', 'precision', 'information', 'penalty', 'invented', 'familiarity')
    """
    return tuple(column.name for column in TABLE if not groups or column.group in groups)


def added(form: Group, *, references: bool = False) -> tuple[str, ...]:
    """Return the columns that scoring with a form adds to a row, with or without references.

    >>> added("paper")[:3]
    ('similarity', 'coverage', 'support')
    """
    return names("shared", form, "references") if references else names("shared", form)


def numbers(columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of the columns that are numbers.

    >>> numbers(["msd", "length", "verdict"])
    ('msd', 'length')
    """
    return tuple(name for name in columns if COLUMNS[name].kind in ("number", "count"))
