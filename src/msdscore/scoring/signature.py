"""One line that names everything that can change a score."""

from msdscore.encoders.base import Encoder
from msdscore.scoring.config import Form, Paper
from msdscore.version import __version__


def signature(encoder: Encoder, form: Form, bank: str | None = None) -> str:
    """`key:value` parts joined by bars; equal signatures and inputs give equal scores.

    >>> from msdscore.encoders.registry import load_encoder
    >>> signature(load_encoder("toy"), Paper()).split("|v:")[0]
    'msd|enc:toy@1|k:3,2|kappa:20|it:20|init:spread|a:0.1|gate:length,20,3|xi:0.2'
    """
    facts = {"enc": encoder.signature} | form.facts()
    if bank is not None:
        facts |= {"cal": f"background,{bank}"} if isinstance(form, Paper) else {"bank": bank}
    return "|".join(["msd", *(f"{name}:{value}" for name, value in facts.items()), f"v:{__version__}"])
