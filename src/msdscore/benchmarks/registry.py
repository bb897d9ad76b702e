"""The table of known benchmarks: one row each, read when asked for."""

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Benchmark, Reading
from msdscore.benchmarks.protocols import resolve
from msdscore.errors import InputError, unknown_name

GROUP = "msdscore.benchmarks"
_HERE = "msdscore.benchmarks"
_COCO_PICTURES = "https://cocodataset.org (pictures belong to their Flickr owners)"

BENCHMARKS = (
    Benchmark(
        name="sugarcrepe",
        title="SugarCrepe",
        kind="pairs",
        reader=f"{_HERE}.sugarcrepe:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="MIT (annotations); COCO terms (pictures)",
        size="7,511 pairs in 7 subsets, COCO val2017 pictures",
        source=f"https://github.com/RAIVNLab/sugar-crepe; {_COCO_PICTURES}",
        files=("SUBSET.json or data/SUBSET.json (7 files)", "val2017/"),
        citation="Hsieh et al., SugarCrepe, NeurIPS 2023, arXiv:2306.14610",
    ),
    Benchmark(
        name="coco-cf",
        title="COCO-CF",
        kind="pairs",
        reader=f"{_HERE}.coco_cf:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="not released",
        size="two splits, easy and hard",
        source="not released; the format is the MSD-Score authors'",
        files=("coco_cf_easy.json", "coco_cf_hard.json", "val2017/"),
        citation="Kan et al., MSD-Score, 2026, arXiv:2605.06080",
    ),
    Benchmark(
        name="caparena",
        title="CapArena",
        kind="battles",
        reader=f"{_HERE}.caparena:read",
        figures=f"{_HERE}.count_battles:caparena",
        credits=f"{_HERE}.count_battles:caparena_credits",
        licence="none stated (annotations); CC BY 4.0 (DOCCI pictures)",
        size="6,523 battles of 14 models and a human writer",
        source="https://github.com/njucckevin/CapArena",
        files=("caparena_annots_eval.json or data/eval/caparena_annots_eval.json", "images/"),
        citation="Cheng et al., CapArena, 2025, arXiv:2503.12329",
        protocols=("official", "authors", "posh", "bradley-terry"),
    ),
    Benchmark(
        name="caparena-auto",
        title="CapArena-Auto",
        kind="battles",
        reader=f"{_HERE}.caparena:read_auto",
        figures=f"{_HERE}.count_battles:caparena_auto",
        credits=f"{_HERE}.count_battles:auto_credits",
        licence="none stated (annotations); CC BY 4.0 (DOCCI pictures)",
        size="600 pictures, 3 fixed opponents of 200 each",
        source="https://github.com/njucckevin/CapArena",
        files=("caparena_auto_600.json", "result.json (captions of your system by file name)", "images/"),
        citation="Cheng et al., CapArena, 2025, arXiv:2503.12329",
    ),
    Benchmark(
        name="docent",
        title="DocENT",
        kind="battles",
        reader=f"{_HERE}.docent:read",
        figures=f"{_HERE}.count_docent:docent",
        credits=f"{_HERE}.count_docent:docent_credits",
        licence="see the dataset cards",
        size="coarse judgements on 100 works of art",
        source="https://huggingface.co/datasets/amitha/docent-eval-coarse and amitha/docent",
        files=("docent-eval-coarse/data/test-*.parquet", "docent/data/*.parquet or images/UUID.jpg"),
        citation="Ananthram et al., PoSh, ICLR 2026",
    ),
    Benchmark(
        name="flickr8k-expert",
        title="Flickr8k-Expert",
        kind="rated",
        reader=f"{_HERE}.flickr8k:read_expert",
        figures=f"{_HERE}.count_ratings:expert",
        licence="research use (annotations); Flickr terms (pictures)",
        size="5,664 captions of 1,000 pictures, 16,992 ratings",
        source="Flickr8k_text.zip of the Flickr8k release",
        files=("ExpertAnnotations.txt and Flickr8k.token.txt, or flickr8k.json", "Flicker8k_Dataset/"),
        citation="Hodosh et al., JAIR 47, 2013",
    ),
    Benchmark(
        name="flickr8k-cf",
        title="Flickr8k-CF",
        kind="rated",
        reader=f"{_HERE}.flickr8k:read_crowdflower",
        figures=f"{_HERE}.count_ratings:crowdflower",
        licence="research use (annotations); Flickr terms (pictures)",
        size="47,830 captions of 1,000 pictures",
        source="Flickr8k_text.zip of the Flickr8k release",
        files=(
            "CrowdFlowerAnnotations.txt and Flickr8k.token.txt, or crowdflower_flickr8k.json",
            "Flicker8k_Dataset/",
        ),
        citation="Hodosh et al., JAIR 47, 2013",
    ),
    Benchmark(
        name="composite",
        title="Composite",
        kind="rated",
        reader=f"{_HERE}.composite:read",
        figures=f"{_HERE}.count_ratings:composite",
        licence="none stated (annotations); Flickr and COCO terms (pictures)",
        size="11,985 ratings of 3,995 pictures from three sources",
        source="https://imagesdg.wordpress.com/image-to-scene-description-graph",
        files=(
            "8k_, 30k_ and coco_correctness.csv, or composite.json",
            "Flicker8k_Dataset/, flickr30k-images/, val2014/",
        ),
        citation="Aditya et al., 2015, arXiv:1511.03292",
    ),
    Benchmark(
        name="pascal50s",
        title="Pascal-50S",
        kind="pairs",
        reader=f"{_HERE}.pascal50s:read",
        figures=f"{_HERE}.count_pairs:pascal",
        credits=f"{_HERE}.count_pairs:pascal_credits",
        licence="none stated (annotations); Flickr terms (pictures)",
        size="4,000 pairs in 4 categories, 48 votes each",
        source="https://vrama91.github.io/cider",
        files=("pair_pascal.mat and consensus_pascal.mat, or pascal_50s.json", "JPEGImages/"),
        citation="Vedantam et al., CIDEr, CVPR 2015",
    ),
    Benchmark(
        name="foil",
        title="FOIL",
        kind="pairs",
        reader=f"{_HERE}.foil:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="see the source (annotations); COCO terms (pictures)",
        size="the test captions of COCO val2014 with one wrong word",
        source=f"https://foilunitn.github.io; {_COCO_PICTURES}",
        files=("foilv1.0_test_2017.json", "captions_val2014.json (references)", "val2014/"),
        citation="Shekhar et al., FOIL it!, ACL 2017",
    ),
    Benchmark(
        name="valse",
        title="VALSE",
        kind="pairs",
        reader=f"{_HERE}.valse:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="see the source (annotations); the terms of each picture set",
        size="11 pieces, confirmed foils only",
        source="https://github.com/Heidelberg-NLP/VALSE",
        files=("PIECE.json or data/PIECE.json (11 files)", "images/DATASET/ or images/"),
        citation="Parcalabescu et al., VALSE, ACL 2022, arXiv:2112.07566",
    ),
    Benchmark(
        name="rsicd",
        title="RSICD",
        kind="pairs",
        reader=f"{_HERE}.rsicd:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="see the source",
        size="1,093 test pictures, one drawn pair each",
        source="https://huggingface.co/datasets/arampacha/rsicd",
        files=("data/test-*.parquet (pictures inside)",),
        citation="Lu et al., IEEE TGRS 56(4), 2018",
    ),
    Benchmark(
        name="rocov2",
        title="ROCOv2",
        kind="pairs",
        reader=f"{_HERE}.rocov2:read",
        figures=f"{_HERE}.count_pairs:strict",
        credits=f"{_HERE}.count_pairs:strict_credits",
        licence="CC BY-NC-SA 4.0 (non-commercial)",
        size="the test pictures, one drawn pair each",
        source="https://huggingface.co/datasets/eltorio/ROCOv2-radiology",
        files=("data/test-*.parquet (pictures inside)",),
        citation="Rückert et al., Scientific Data 11, 2024, arXiv:2405.10004",
    ),
)


def benchmarks() -> Iterator[Benchmark]:
    """Every known benchmark, the built-in ones first, then those of installed packages by name."""
    yield from BENCHMARKS
    for point in sorted(_plugins().values(), key=lambda found: found.name):
        yield _from_plugin(point)


def benchmark(name: str) -> Benchmark:
    """The row of a benchmark by name.

    >>> benchmark("sugarcrepe").kind
    'pairs'
    """
    rows = {row.name: row for row in BENCHMARKS}
    if name in rows:
        return rows[name]
    plugins = _plugins()
    if name in plugins:
        return _from_plugin(plugins[name])
    raise unknown_name("benchmark", name, {*rows, *plugins})


def load(name: str, root: str | Path, **options: Any) -> Reading[Any]:
    """Read a benchmark's released files under `root`; `options` are those of its reader (split, seed …)."""
    reader = resolve(benchmark(name).reader)
    _check_options(name, reader, options)
    reading: Reading[Any] = reader(Path(root), **options)
    if not reading.items:
        raise InputError(f"{name}: the files under {root} hold no items")
    return reading


def _check_options(name: str, reader: Callable[..., Any], options: Iterable[str]) -> None:
    """Refuse what the reader does not take, by name."""
    _, *known = signature(reader).parameters.values()
    if any(option.kind is Parameter.VAR_KEYWORD for option in known):
        return
    names = [option.name for option in known]
    for option in options:
        if option not in names:
            raise unknown_name(f"option of {name}", option, names)


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _from_plugin(point: EntryPoint) -> Benchmark:
    row = point.load()
    if not isinstance(row, Benchmark):
        raise InputError(f"entry point {point.name} of {GROUP}: expected a Benchmark, got {type(row).__name__}")
    return row
