"""Specs of scorers: plain values from which any process builds the same scorer."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdscore import threads
from msdscore.core.evidence import VERDICT_AT, checked_limits
from msdscore.encoders.banks import NamedBank, load_bank
from msdscore.encoders.base import Encoder
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore.forms.base import Form
from msdscore.forms.registry import check_form, find_form
from msdscore.io.files import file_key
from msdscore.io.images import ImageLimits
from msdscore.registry import names_object
from msdscore.scoring.pipeline import Pipeline, recommended_form
from msdscore.version import __version__

if TYPE_CHECKING:  # imported if vectors are cached on disk
    from msdscore.encoders.cached import CacheSettings

DEFAULT_ENCODER = "mini"
NamedValues = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSpec:
    """Encoder and its options, settings, bank, limits and device: small, picklable, printable.

    `form` is a form such as `Paper` or `Evidence`, the name of one, or None for the settings that the encoder
    recommends; `changes` are settings changed on top of it. `options` are those of the encoder's family. `bank` is the
    path of a bank file, `cache` the cache of embeddings on disk. `threads` is the number of CPU threads of the process,
    None for one per core that it may use. `verdict_at` are the limits of verdicts: `off topic` below the first, `on
    topic` from the second on. Mappings are accepted for `options` and `changes` and stored as sorted pairs.

    >>> spec = ScorerSpec(encoder="toy", form="long", changes={"alpha": 0.2})
    >>> spec.build().form.alpha
    0.2
    """

    encoder: str = DEFAULT_ENCODER
    options: NamedValues = ()
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    verify: bool = field(default=False, compare=False)  # read every byte of the weights; changes no score
    form: Form | str | None = None
    changes: NamedValues = ()
    bank: str | None = None
    limits: ImageLimits = field(default_factory=ImageLimits)
    batch_size: int | None = None  # images per batch of the encoder; None: chosen for its device
    cache: "CacheSettings | None" = None
    # Processes that decode images; 0: threads of the process that scores; None: one per core next to a GPU, else 0.
    decoders: int | None = None
    threads: int | None = field(default=None, compare=False)  # changes no score
    verdict_at: tuple[float, float] = VERDICT_AT

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, str):
            raise ConfigError(f"expected an encoder or the name of one, got {type(self.encoder).__name__}")
        check_form(self.form)
        object.__setattr__(self, "verdict_at", checked_limits(self.verdict_at))
        for name in ("options", "changes"):
            # Sorted pairs with tuples for lists, so that the spec can be compared and hashed.
            values = dict(getattr(self, name)).items()
            pairs = sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in values)
            object.__setattr__(self, name, tuple(pairs))

    def build(self, *, encoder: Encoder | None = None, bank: NamedBank | None = None) -> Pipeline:
        """Load the encoder and the bank unless they are passed, and build the pipeline."""
        threads.use(self.threads)
        encoder = encoder or self._load()
        threads.use(self.threads)  # it may have imported torch
        if self.cache is not None:
            from msdscore.encoders.cached import CachedEncoder

            encoder = CachedEncoder(encoder, self.cache)
        loaded = bank if bank or self.bank is None else load_bank(Path(self.bank))
        base = find_form(self.form) if isinstance(self.form, str) else self.form
        return Pipeline(
            encoder,
            (base or recommended_form(encoder, loaded)).changed(**dict(self.changes)),
            bank=loaded,
            limits=self.limits,
            batch_size=self.batch_size,
            decoders=self.decoders,
            verdict_at=self.verdict_at,
        )

    def _load(self) -> Encoder:
        return load_encoder(
            self.encoder, device=self.device, dtype=self.dtype, revision=self.revision, verify=self.verify,
            **dict(self.options),
        )  # fmt: skip

    def record(self) -> dict[str, Any] | None:
        """Return the settings that can change a score, as stored with finished work; None for a local encoder.

        Equal records build equal scorers without loading them; the content of a folder or a module may change.
        """
        if Path(self.encoder).exists() or names_object(self.encoder):
            return None
        bank = None if self.bank is None else file_key(Path(self.bank))
        values = {"version": __version__, **self.to_dict(), "bank": bank}
        for name in ("batch_size", "decoders", "cache"):
            del values[name]
        return dict(json.loads(json.dumps(values, default=str)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and for the run metadata."""
        values = asdict(self) | {"options": dict(self.options), "changes": dict(self.changes)}
        del values["verify"], values["threads"]
        return values
