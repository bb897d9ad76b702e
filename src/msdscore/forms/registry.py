"""The forms by name."""

from typing import Any

from msdscore.core.evidence import Bank
from msdscore.errors import ConfigError, unknown_name
from msdscore.forms import evidence, paper
from msdscore.forms.base import Form
from msdscore.forms.columns import COLUMNS

FORMS: tuple[type[Any], ...] = (paper.Paper, evidence.Evidence)
NAMED: dict[str, Form] = {**paper.NAMED, **evidence.NAMED}


def check_form(value: object) -> None:
    """Raise `ConfigError` unless the value is a form, the name of one or None."""
    if not isinstance(value, (*FORMS, str, type(None))):
        names = ", ".join(form.__name__ for form in FORMS)
        raise ConfigError(f"expected {names} or the name of a form, got {type(value).__name__}")


def find_form(name: str, **changes: Any) -> Form:
    """Return the form of that name, with some settings changed.

    >>> find_form("evidence", balance=0.25).facts()["balance"]
    '0.25'
    """
    if name not in NAMED:
        raise unknown_name("form", name, NAMED)
    return NAMED[name].changed(**changes)


def form_of_bank(bank: Bank) -> Form | None:
    """Return the evidence form if a bank was built from captioned images; None for other banks, which fit any form."""
    if bank.words is None:
        return None
    return evidence.Evidence(components=bank.images.means.shape[1], kappa=bank.images.kappa)


def score_name(signature: str) -> str:
    """Return the name of the score in a signature.

    >>> score_name("msd-e|enc:mini@1|form:evidence"), score_name("msd|enc:toy@1|k:3,2"), score_name("")
    ('MSD-E', 'MSD', 'MSD')
    """
    name = facts_of(signature).get("form")
    return next((str(form.name) for form in FORMS if form.__name__.lower() == name), paper.Paper.name)


def heading(column: str, signature: str) -> str:
    """Return the heading of a column in tables of scores with this signature.

    >>> heading("soft_msd", "msd-e|enc:mini@1|form:evidence"), heading("msd", "msd|enc:toy@1"), heading("human", "")
    ('Soft-MSD-E', 'MSD', 'human')
    """
    return COLUMNS[column].heading.replace("MSD", score_name(signature)) if column in COLUMNS else column


def facts_of(signature: str) -> dict[str, str]:
    """Parse a signature, which is all that a file of scores has about its scorer.

    >>> facts_of("msd|enc:toy@1|xi:0.2|v:1.0")
    {'enc': 'toy@1', 'xi': '0.2', 'v': '1.0'}
    """
    return dict(fact.partition(":")[::2] for fact in signature.split("|")[1:])
