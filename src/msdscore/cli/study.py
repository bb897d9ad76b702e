"""`msdscore study`: do the maps show what moves the score, and do the terms find the wrong word?"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options

if TYPE_CHECKING:
    from msdscore.benchmarks.base import Pair
    from msdscore.scoring.pipeline import Pipeline

study = typer.Typer(no_args_is_help=True, help="Studies of the score's explanations on a benchmark of pairs.")

BENCHMARK = "sugarcrepe"
Root = Annotated[Path, typer.Option("--root", help="Folder of SugarCrepe: its JSON files, or its rows form.")]
Limit = Annotated[int | None, typer.Option(min=1, help="How many pairs at most, drawn by the seed.")]
Seed = Annotated[int, typer.Option(help="Of the draw and of random regions.")]
To = Annotated[Path | None, typer.Option("--output", "-o", help="JSON file; a .md of the same name goes beside it.")]
CHECKED_METRICS = ["cosine", "max-sim", "msd"]


@study.command()
def faithfulness(
    root: Root,
    output: To = None,
    overwrite: options.Overwrite = False,
    limit: Limit = None,
    seed: Seed = 0,
    share: Annotated[float, typer.Option(help="Share of the regions that is masked.")] = 0.1,
    every_projection: Annotated[bool, typer.Option("--every-projection", help="Try all projections.")] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006, typer copies it
    bank: options.BankFile = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 32,
) -> None:
    """Mask top, random and bottom regions, and delete and insert them in the order of the maps."""
    from msdscore.studies import curves as curve_study
    from msdscore.studies import faithfulness as masking_study

    _check(output, overwrite)
    pipeline, pairs = _prepare(root, encoder, preset, change, bank, device, batch_size)
    settings = masking_study.MaskingSettings(share=share, limit=limit, seed=seed)
    with _bar("masking") as show:
        if every_projection:
            tables = masking_study.compare_projections(pipeline, pairs, settings, progress=show)
        else:
            tables = [masking_study.faithfulness(pipeline, pairs, settings, progress=show)]
    with _bar("curves") as show:
        lines = curve_study.curves(pipeline, pairs, settings, progress=show)
    text = f"{masking_study.section(tables)}\n{curve_study.section(lines)}"
    _write({"masking": [table.to_dict() for table in tables], "curves": lines.to_dict()}, text, output)


@study.command()
def localisation(
    root: Root,
    output: To = None,
    overwrite: options.Overwrite = False,
    limit: Limit = None,
    seed: Seed = 0,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006
    bank: options.BankFile = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 32,
) -> None:
    """How often the changed word of a wrong caption is the least supported one."""
    from msdscore.studies import localisation as word_study

    _check(output, overwrite)
    pipeline, pairs = _prepare(root, encoder, preset, change, bank, device, batch_size)
    with _bar("localising") as show:
        result = word_study.localisation(pipeline, pairs, limit=limit, seed=seed, progress=show)
    _write(result.to_dict(), word_study.section(result), output)


@study.command()
def words(
    root: Annotated[Path, typer.Option("--root", help="Folder of HAT, or of long captions with CHAIR's marks.")],
    marks: Annotated[str, typer.Option(help="hat: words marked by people; chair: absent objects by name.")] = "hat",
    synonyms: Annotated[
        Path | None, typer.Option(help="With chair: names of the object classes, a line each, separated by commas.")
    ] = None,
    output: To = None,
    overwrite: options.Overwrite = False,
    limit: Limit = None,
    seed: Seed = 0,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006
    bank: options.BankFile = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 32,
) -> None:
    """How well the terms of words tell what a caption invents from what is there."""
    from msdscore.benchmarks.readers.hallucinations import read_hat_words, read_long_words
    from msdscore.errors import unknown_name
    from msdscore.studies import words as word_study

    _check(output, overwrite)
    readers = {"hat": read_hat_words, "chair": read_long_words}
    if marks not in readers:
        raise unknown_name("kind of marks", marks, readers)
    captions = readers[marks](root)
    captions = captions if limit is None else captions[:: max(1, len(captions) // limit)][:limit]
    scorer = options.make_scorer(
        encoder, preset, change, encoder_options=[], bank=bank, batch_size=batch_size, max_pixels=None, device=device
    )
    known = word_study.read_synonyms(synonyms) if synonyms else None
    with _bar("words") as show:
        result = word_study.word_study(scorer.pipeline, captions, synonyms=known, seed=seed, progress=show)
    _write(result.to_dict(), word_study.section(result), output)


@study.command()
def behaviour(
    rows: Annotated[Path, typer.Option("--rows", help="JSON lines of {image, captions}, with pictures beside it.")],
    metric: Annotated[
        list[str], typer.Option("--metric", "-m", help="NAME; see `msdscore metrics`. Repeatable.")
    ] = CHECKED_METRICS,
    output: To = None,
    overwrite: options.Overwrite = False,
    limit: Annotated[int | None, typer.Option(min=2, help="How many pictures at most.")] = 200,
    seed: Seed = 0,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006
    bank: options.BankFile = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 32,
) -> None:
    """Small generated tests on real pictures: what a metric can see, and what it cannot."""
    from msdscore.benchmarks.readers.rows import captioned_pictures
    from msdscore.metrics.registry import load_metrics
    from msdscore.studies import behaviour as behaviour_study

    _check(output, overwrite)
    entries = captioned_pictures(rows)
    entries = entries if limit is None else entries[:: max(1, len(entries) // limit)][:limit]
    scorer = options.make_scorer(
        encoder, preset, change, encoder_options=[], bank=bank, batch_size=batch_size, max_pixels=None, device=device
    )
    with _bar("behaviour") as show:
        result = behaviour_study.behaviour(scorer.pipeline, load_metrics(metric), entries, seed=seed, progress=show)
    _write(result.to_dict(), behaviour_study.section(result), output)


def _prepare(
    root: Path,
    encoder: str,
    preset: str | None,
    change: list[str],
    bank: Path | None,
    device: str,
    batch_size: int,
) -> "tuple[Pipeline, list[Pair]]":
    from msdscore.benchmarks.registry import load

    # As `bench` does: the folder of the benchmark itself, or the one above it; released files or rows.
    pairs = list(load(BENCHMARK, root / BENCHMARK if (root / BENCHMARK).is_dir() else root).items)
    spec = options.make_spec(
        encoder, preset, change, encoder_options=[], bank=bank, batch_size=batch_size, max_pixels=None, device=device
    )
    return spec.build(), pairs


def _bar(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    from msdscore.cli.progress import bar

    return bar(what)


def _check(output: Path | None, overwrite: bool) -> None:
    """Refuse a name that cannot be written; a study takes long, so a file that is there is refused at once."""
    from msdscore.io.outputs.targets import check_target, refuse_existing

    if output is not None:
        check_target(output, (".json",))
        refuse_existing([] if overwrite else [output, output.with_suffix(".md")])


def _write(numbers: dict[str, Any], text: str, output: Path | None) -> None:
    """Tables to standard output; numbers and tables to files where asked."""
    import json

    from msdscore.io.outputs.targets import put_all

    if output is not None:
        plain = json.dumps(numbers, ensure_ascii=False, indent=1) + "\n"
        put_all({output: plain.encode(), output.with_suffix(".md"): text.encode()}, overwrite=True)
    typer.echo(text)
