"""Published figures of other metrics, to stand beside ours as quotations: data, no code.

Only figures that were read in the primary source are here. All are on the full sets and under the benchmark's official
way of counting; a figure on part of a set cannot be compared with them digit by digit.
"""

from dataclasses import dataclass

_CLIPSCORE = "Hessel et al., EMNLP 2021"
_EXPECTED = "expected values of capevalkit"
_CAPARENA = "Cheng et al., CapArena, 2025, table 2 (agreement with ties)"
_SUGARCREPE = "table of the SugarCrepe repository; the mean of the seven subsets is ours"


@dataclass(frozen=True, slots=True)
class Quoted:
    """One published figure, times 100; `references` marks metrics that read references."""

    benchmark: str
    metric: str
    value: float
    source: str
    references: bool = False


_RATINGS = (  # metric, Flickr8k-Expert tau-c, Flickr8k-CF tau-b, Composite tau-c, source, references
    ("CLIP-S", 51.2, 34.4, 53.8, _CLIPSCORE, False),
    ("RefCLIP-S", 53.0, 36.4, 55.4, _CLIPSCORE, True),
    ("PAC-S B/32", 54.3, 36.0, 55.7, _EXPECTED, False),
    ("RefPAC-S", 55.9, 37.6, 57.3, _EXPECTED, True),
    ("Polos", 56.4, 37.8, 57.6, _EXPECTED, True),
    ("FLEUR", 53.0, 38.6, 63.5, _EXPECTED, False),
    ("RefFLEUR", 51.9, 38.8, 64.2, _EXPECTED, True),
    ("EXPERT", 56.7, 39.3, 65.0, _EXPECTED, False),
)
_ARENA = (
    ("GPT-4o", 62.8, False), ("Qwen2.5-VL", 62.5, False), ("LLaVA-Critic", 60.9, False), ("output length", 58.5, False),
    ("METEOR", 57.6, True), ("Polos", 47.9, True), ("FLEUR", 45.8, False), ("LongCLIPScore", 40.0, False),
    ("CIDEr", 38.4, True), ("CLIP-S", 32.5, False),
)  # fmt: skip
_CREPE = (("GPT-4V", 91.0), ("CLIP bigG/14", 81.9), ("CLIP H/14", 81.6), ("CLIP B/32", 73.1), ("CLIP L/14", 73.0))

QUOTED: tuple[Quoted, ...] = (
    *(
        Quoted(benchmark, name, value, source, references)
        for name, expert, crowd, composite, source, references in _RATINGS
        for benchmark, value in (("flickr8k-expert", expert), ("flickr8k-cf", crowd), ("composite", composite))
    ),
    Quoted("pascal50s", "CLIP-S", 80.7, _CLIPSCORE),
    Quoted("pascal50s", "RefCLIP-S", 83.1, _CLIPSCORE, references=True),
    Quoted("pascal50s", "FLEUR", 83.3, "counted from FLEUR's released outputs"),
    Quoted("foil", "CLIP-S", 87.2, _CLIPSCORE),
    Quoted("foil", "RefCLIP-S", 91.0, f"{_CLIPSCORE}, one reference", references=True),
    *(Quoted("caparena", name, value, _CAPARENA, references) for name, value, references in _ARENA),
    *(Quoted("sugarcrepe", name, value, _SUGARCREPE) for name, value in _CREPE),
)
