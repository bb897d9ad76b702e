"""Metrics by name: the table of those that msdscore knows, and how one is read and loaded."""

import re
from collections.abc import Callable, Iterable

from msdscore.errors import ConfigError, unknown_name
from msdscore.metrics.base import Loaded, Metric, MetricRow, Need
from msdscore.registry import Registry, resolve

_OPTION = re.compile(r",(?=[a-z_]+=)")
_HERE = "msdscore.metrics"
_KAN = "Kan et al., MSD-Score, 2026, arXiv:2605.06080"
_HESSEL = "Hessel et al., CLIPScore, EMNLP 2021, arXiv:2104.08718"
_PACS = "Sarto et al., PAC-S, CVPR 2023, arXiv:2303.12112"
_ENCODER: tuple[Need, ...] = ("encoder",)
_MIXTURES: tuple[Need, ...] = ("encoder", "mixtures")
_TOKENIZER = ("tokenizer",)
_JUDGE = ("url", "backend", "cache", "key_env", "workers", "retries", "price_in", "price_out", "temperature", "top_p",
          "device", "dtype")  # fmt: skip

ROWS: tuple[MetricRow, ...] = (
    MetricRow(name="cosine", loader=f"{_HERE}.encoded:load_cosine", title="similarity of the pooled vectors",
              needs=_ENCODER),
    MetricRow(name="coverage", loader=f"{_HERE}.encoded:load_coverage", title="KL(image‖text): what the caption omits",
              needs=_MIXTURES, higher_is_better=False, citation=_KAN),
    MetricRow(name="support", loader=f"{_HERE}.encoded:load_support", title="KL(text‖image): what the caption invents",
              needs=_MIXTURES, higher_is_better=False, citation=_KAN),
    MetricRow(name="information", loader=f"{_HERE}.encoded:load_information",
              title="how much the caption tells about the image; evidence form", needs=_MIXTURES),
    MetricRow(name="precision", loader=f"{_HERE}.encoded:load_precision",
              title="whether what the caption says is true of the image; evidence form", needs=_MIXTURES),
    MetricRow(name="bi-kl", loader=f"{_HERE}.encoded:load_divergence", title="both divergences, weighed by the gate",
              needs=_MIXTURES, higher_is_better=False, citation=_KAN),
    MetricRow(name="msd", loader=f"{_HERE}.encoded:load_msd", title="similarity and the local terms",
              needs=_MIXTURES, citation=_KAN),
    MetricRow(name="soft-msd", loader=f"{_HERE}.encoded:load_soft_msd",
              title="MSD gated by the uncertainty of the candidate set", needs=_MIXTURES, options=("set",),
              citation=_KAN, note="equals msd where an item has one caption, unless set=image"),
    MetricRow(name="rank-agg", loader=f"{_HERE}.encoded:load_rank_agg",
              title="similarity, or the smaller divergence where similarities are close", needs=(*_MIXTURES, "pairs"),
              options=("margin",), citation=_KAN, note="a diagnostic baseline of the paper"),
    MetricRow(name="clipscore", loader=f"{_HERE}.encoded:load_clipscore",
              title="2.5·max(cosine, 0) with the prefix 'A photo depicts '", needs=_ENCODER, options=("prefix",),
              citation=_HESSEL,
              note="published with encoder clip-b32 and encoder options long_text=cut, crop=torchvision"),
    MetricRow(name="refclipscore", loader=f"{_HERE}.encoded:load_refclipscore",
              title="harmonic mean of CLIPScore and the nearest reference", needs=("encoder", "references"),
              options=("prefix",), citation=_HESSEL),
    MetricRow(name="longclipscore", loader=f"{_HERE}.encoded:load_longclipscore",
              title="CLIPScore with an encoder that reads the whole caption at once", needs=_ENCODER,
              options=("prefix",), citation="Zhang et al., Long-CLIP, ECCV 2024, arXiv:2403.15378",
              note="needs a LongCLIP encoder where captions pass 77 tokens"),
    MetricRow(name="max-sim", loader=f"{_HERE}.encoded:load_max_sim",
              title="mean over tokens of the most similar patch", needs=_ENCODER,
              citation="Yao et al., FILIP, ICLR 2022, arXiv:2111.07783"),
    MetricRow(name="max-sim-cal", loader=f"{_HERE}.encoded:load_calibrated_max_sim",
              title="max-sim less its mean over the calibration's background pictures", needs=_MIXTURES,
              note="needs settings with calibration=background"),
    MetricRow(name="sinkhorn", loader=f"{_HERE}.encoded:load_sinkhorn",
              title="entropic transport cost between tokens and patches", needs=_ENCODER, higher_is_better=False,
              extra="ot", options=("reg",), citation="Cuturi, NeurIPS 2013; Flamary et al., POT, JMLR 2021"),
    MetricRow(name="pac-s", loader=f"{_HERE}.pac:load_pac",
              title="2·max(cosine, 0) of a CLIP tuned by positive augmentation", needs=("pictures",),
              argument="its checkpoint file", extra="openclip", options=("device", "family"), citation=_PACS),
    MetricRow(name="refpac-s", loader=f"{_HERE}.pac:load_refpac",
              title="harmonic mean of PAC-S and the nearest reference", needs=("pictures", "references"),
              argument="its checkpoint file", extra="openclip", options=("device", "family"), citation=_PACS),
    MetricRow(name="fleur", loader=f"{_HERE}.vlm.fleur:load_fleur",
              title="a vision-language model's grade, smoothed over its digit probabilities", needs=("pictures",),
              argument="folder or hub name of a LLaVA-like checkpoint", extra="hf",
              options=("device", "dtype", "prompt", "revision"),
              citation="Lee et al., FLEUR, ACL 2024, arXiv:2406.06004",
              note="the default prompt is our own wording; prompt=FILE takes another"),
    MetricRow(name="judge", loader=f"{_HERE}.vlm.judge:load_judge",
              title="a vision-language model chooses the better of two captions, in both orders",
              needs=("pictures", "pairs"),
              argument="a model name at the endpoint, or a local folder with backend=local", extra="judge",
              options=_JUDGE, judged=True,
              citation="Cheng et al., CapArena, 2025, arXiv:2503.12329 (criteria; the wording is ours)"),
    MetricRow(name="bleu-4", loader=f"{_HERE}.references:load_bleu", title="BLEU-4", needs=("references",),
              extra="references", options=_TOKENIZER, scope="corpus", citation="Papineni et al., ACL 2002"),
    MetricRow(name="rouge-l", loader=f"{_HERE}.references:load_rouge", title="ROUGE-L", needs=("references",),
              extra="references", options=_TOKENIZER, scope="corpus", citation="Lin, 2004"),
    MetricRow(name="cider", loader=f"{_HERE}.references:load_cider",
              title="CIDEr, document frequencies from the benchmark's own references", needs=("references",),
              extra="references", options=_TOKENIZER, scope="corpus",
              citation="Vedantam et al., CVPR 2015, arXiv:1411.5726"),
    MetricRow(name="meteor", loader=f"{_HERE}.references:load_meteor", title="METEOR 1.5", needs=("references",),
              extra="references", options=_TOKENIZER, scope="corpus", citation="Denkowski and Lavie, 2014",
              note="needs Java"),
    MetricRow(name="spice", loader=f"{_HERE}.references:load_spice", title="SPICE", needs=("references",),
              extra="references", scope="corpus", citation="Anderson et al., ECCV 2016, arXiv:1607.08822",
              note="needs Java and the Stanford CoreNLP 3.6.0 models"),
    MetricRow(name="file", loader=f"{_HERE}.given:load_file",
              title="scores computed elsewhere, joined on the item id, or on picture and caption",
              argument="a JSON Lines file of {id, score | scores | verdict} or {image, caption, score}",
              options=("lower_is_better", "partial"), scope="corpus",
              note="a control needs wrong_score, wrong_scores or wrong_verdict beside them"),
    MetricRow(name="length", loader=f"{_HERE}.given:load_length", title="the caption with more words wins"),
    MetricRow(name="shorter", loader=f"{_HERE}.given:load_shorter", title="the caption with fewer words wins"),
    MetricRow(name="random", loader=f"{_HERE}.given:load_random", title="a number drawn from the seed and the item",
              options=("seed",)),
    MetricRow(name="constant", loader=f"{_HERE}.given:load_constant", title="the same number for all: ties only"),
)  # fmt: skip


METRICS = Registry("metric", MetricRow, lambda: ROWS)


def list_metrics() -> tuple[MetricRow, ...]:
    """Every metric that can be asked for, the built-in ones first, then those of installed packages.

    >>> [row.name for row in list_metrics()][:3]
    ['cosine', 'coverage', 'support']
    """
    return tuple(METRICS.rows().values())


def load_metric(asked: str) -> Metric:
    """A metric from `NAME`, `NAME:ARGUMENT` or either with `,option=value` behind it.

    >>> load_metric("soft-msd,set=image").choices
    'set:image'
    """
    name, argument, options = read_metric(asked)
    row = METRICS.find(name)
    _check(row, argument, options)
    loader: Callable[..., Loaded] = resolve(row.loader, f"metric {row.name!r}")
    loaded = loader(argument, **options) if row.argument else loader(**options)
    lower = not row.higher_is_better if loaded.lower_is_better is None else loaded.lower_is_better
    return Metric(asked, row, loaded.score, loaded.choices, not lower, row.judged or loaded.judged)


def load_metrics(asked: Iterable[str]) -> tuple[Metric, ...]:
    """Several metrics, each asked for once."""
    wanted = list(dict.fromkeys(asked))
    if not wanted:
        raise ConfigError("expected at least one metric, got none; see `msdscore metrics`")
    return tuple(map(load_metric, wanted))


def read_metric(asked: str) -> tuple[str, str, dict[str, str]]:
    """Name, argument and options of what was asked for.

    >>> read_metric("judge:gpt-4o,url=http://localhost:8000/v1")
    ('judge', 'gpt-4o', {'url': 'http://localhost:8000/v1'})
    """
    head, *rest = _OPTION.split(asked)
    name, _, argument = head.partition(":")
    options = dict(part.split("=", 1) for part in rest)
    return name.strip(), argument.strip(), options


def number(name: str, text: str | float, *, least: float = float("-inf")) -> float:
    """The value of a numeric option."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, got {text!r}") from None
    if not value >= least:
        raise ConfigError(f"{name} must be at least {least:g}, got {text}")
    return value


def choice(name: str, value: str, known: tuple[str, ...]) -> str:
    """The value of an option that has a few known ones."""
    if value not in known:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
    return value


def _check(row: MetricRow, argument: str, options: dict[str, str]) -> None:
    if row.argument and not argument:
        raise ConfigError(f"metric {row.name!r} is asked for as {row.name}:ARGUMENT, where ARGUMENT is {row.argument}")
    if argument and not row.argument:
        raise ConfigError(f"metric {row.name!r} takes no argument, got {argument!r}")
    for name in options:
        if name not in row.options:
            raise unknown_name(f"option of metric {row.name}", name, row.options)
