"""The identity of a scorer: everything that can change a score, as one line and as plain values."""

from dataclasses import asdict, dataclass
from typing import Any

from msdscore.forms.base import Form
from msdscore.forms.registry import FORMS
from msdscore.version import __version__


@dataclass(frozen=True, slots=True)
class Identity:
    """Encoder (by its signature), form and bank of a scorer; equal identities and inputs produce equal scores.

    >>> from msdscore import Paper
    >>> Identity("toy@1", Paper()).signature.split("|v:")[0]
    'msd|enc:toy@1|k:3,2|kappa:20|it:20|init:spread|a:0.1|gate:length,20,3|xi:0.2'
    """

    encoder: str
    form: Form
    bank: str | None = None  # by its name, which has a hash of its content

    @property
    def signature(self) -> str:
        """One line of `key:value` facts joined by bars, reported with every number."""
        facts = {"enc": self.encoder} | self.form.facts(self.bank)
        settings = (f"{name}:{value}" for name, value in facts.items())
        return "|".join([self.form.name.lower(), *settings, f"v:{__version__}"])

    def manifest(self) -> dict[str, Any]:
        """Return the same as plain values, setting by setting, so that a run can report the differences."""
        settings = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.form).items()
        }
        return {"encoder": self.encoder, "settings": settings, "bank": self.bank}


def score_name(signature: str) -> str:
    """Return the name of the score in a signature.

    >>> score_name("msd-e|enc:mini@1|form:evidence"), score_name("msd|enc:toy@1|k:3,2"), score_name("")
    ('MSD-E', 'MSD', 'MSD')
    """
    names = {row.kind.name.lower(): str(row.kind.name) for row in FORMS}
    return names.get(signature.partition("|")[0], "MSD")


def facts_of(signature: str) -> dict[str, str]:
    """Parse a signature, which is all that a file of scores has about its scorer.

    >>> facts_of("msd|enc:toy@1|xi:0.2|v:1.0")
    {'enc': 'toy@1', 'xi': '0.2', 'v': '1.0'}
    """
    return dict(fact.partition(":")[::2] for fact in signature.split("|")[1:])
