"""`msdscore score`: captions of one image, every row of a file, or shards into a folder."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options, shards
from msdscore.cli.progress import bar, print_json, rows_file, tell, tell_reasons
from msdscore.errors import ConfigError, shortened

if TYPE_CHECKING:
    from msdscore.io.inputs.rows import RowSource
    from msdscore.run.rows import RunOptions, ScoredFile
    from msdscore.scoring.spec import ScorerSpec


def score(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="An image, a file of rows, or a shard; - is JSON lines on standard input.")
    ],
    captions: Annotated[
        list[str] | None, typer.Argument(help="Captions of the image (one candidate set), or more shards.")
    ] = None,
    images: options.Images = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File (.parquet, .jsonl, .csv, .tsv or .json), or folder; - prints rows."),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(
            "--input-format", "--format", help="Format of the rows (jsonl, csv, …) if the input's name does not tell."
        ),
    ] = None,
    image_column: Annotated[str | None, typer.Option(help="Input column of the images.")] = None,
    caption_column: Annotated[str | None, typer.Option(help="Input column of the captions.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Input column of the row ids.")] = None,
    prefix: Annotated[str, typer.Option(help="Put before the names of the columns that are added.")] = "",
    overwrite: options.Overwrite = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try failed rows again, even if their images are the same.")
    ] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    verify: options.Verify = False,
    batch_size: options.BatchSize = None,
    decoders: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that decode images; 0: threads; without it one per core beside a GPU."),
    ] = None,
    max_pixels: options.MaxPixels = None,
    cache: options.Cache = None,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    cache_half: options.CacheHalf = False,
    engine: shards.Engine = "local",
    workers: shards.Workers = None,
    address: shards.Address = None,
    worker_cpus: shards.WorkerCpus = None,
    worker_gpus: shards.WorkerGpus = None,
    part: shards.Part = None,
    time_limit: shards.TimeLimit = None,
    copy_column: shards.CopyColumn = [],
    json: options.Json = False,
) -> None:
    """Score captions of one image, every row of a file, or shards into a folder.

    An image with captions prints a table. A file of rows (JSON lines, CSV, TSV, Parquet, COCO results or annotations,
    id-to-caption JSON, a saved dataset; text also with .gz or .zst) is scored in parts that survive any crash; the same
    command goes on where it stopped, and scores again what has changed since. Captions of one image are a candidate
    set, unless a column group says otherwise; a list of captions in a row is a set of its own. An output without a
    suffix is a folder: every shard (tar, Parquet, JSON lines; patterns such as 'shards/{00000..00999}.tar') gets one
    Parquet file of scores there.

    Exit codes: 0 all scored, 3 some rows failed and say why, 2 wrong usage.
    """
    from msdscore.io.inputs.columns import ColumnNames
    from msdscore.io.inputs.rows import open_rows
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.io.tar import is_image_name
    from msdscore.run.rows import RunOptions

    if output is not None and not output.strip():
        raise ConfigError("-o has no name; expected a file, a folder, or - for standard output")
    target = None if output is None or is_standard_output(output) else output
    spec = options.make_spec(context.params)
    shards.check_engine(context.params)
    names = ColumnNames(image=image_column, caption=caption_column, id=id_column)
    if target is not None and shards.is_folder(target, source):
        if prefix or input_format:
            raise ConfigError("--prefix and --input-format are for files of rows; shards are told apart by their names")
        from msdscore.run.shards import ShardOptions

        how_to_read = ShardOptions(
            columns=names, images=None if images is None else str(images), copied=tuple(copy_column), retry=retry,
            overwrite=overwrite, verify=verify,
        )  # fmt: skip
        whole = shards.score_shards(spec, [source, *(captions or [])], target, how_to_read, context.params)
        raise typer.Exit(0 if whole else options.SOME_FAILED)
    shards.refuse_shards(context.params, source, captions)
    file = None if target is None else Path(target)
    if captions:
        score_image(spec, source, captions, as_json=json, output=file, overwrite=overwrite)
        return
    if is_image_name(Path(source)):
        raise ConfigError(f"{source}: an image is scored with its captions: msdscore score IMAGE CAPTION…")
    how = RunOptions(overwrite=overwrite, retry=retry, prefix=prefix, verify=verify)
    with open_rows(source, images=images, format=input_format, columns=names) as rows:
        result = score_file(spec, rows, file, how, as_json=json)
    options.print_cache_use(cache, result.cache)
    raise typer.Exit(options.SOME_FAILED if result.failed else 0)


def score_image(
    spec: "ScorerSpec", image: str, captions: list[str], *, as_json: bool, output: Path | None, overwrite: bool
) -> None:
    """Rank the captions of one image and print or write them."""
    from msdscore.io.inputs.formats import known_inputs
    from msdscore.io.outputs.files import check_output, write_table
    from msdscore.scorer import Scorer

    if Path(image).suffix.lower().removeprefix(".") in known_inputs():
        raise ConfigError(f"{image} is a file of rows and takes no captions; give an image, or leave the captions out")
    if output is not None:
        check_output(output, inputs=[image])
    scores = Scorer.from_spec(spec).rank(image, captions)
    if output is not None:
        write_table(scores.to_arrow(), output, metadata={"msdscore": scores.signature}, overwrite=overwrite)
    if as_json:
        print_json({"image": image, **scores.to_dict()})
    elif output is None:
        typer.echo(str(scores))


def score_file(
    spec: "ScorerSpec", rows: "RowSource", output: Path | None, how: "RunOptions", *, as_json: bool
) -> "ScoredFile":
    """Score rows into the output, or as JSON lines to standard output."""
    from msdscore.run.rows import score_rows

    with rows_file(output) as target, bar("scoring") as show:
        result = score_rows(spec, rows, target, how, progress=show)
    _tell(result, output)
    if as_json and output is not None:
        print_json({"output": str(output), **asdict(result)})
    return result


def _tell(result: "ScoredFile", output: Path | None) -> None:
    """What became of the rows, on standard error: first how many scores need a second look."""
    if result.warned:
        tell(f"rows with warnings: {result.warned} (column warnings)")
    for warning in result.warnings:
        tell(f"  {shortened(warning, 300)}")
    where = f" -> {output}" if output else ""
    if result.earlier and not result.scored:
        done = "; already finished, nothing to do"
    else:
        done = f"; {result.earlier} of them scored by an earlier run" if result.earlier else ""
    tell(f"{result.rows} rows, {result.failed} failed{where}{done}")
    tell_reasons(result.reasons, result.failed, "the column error of the output has all")
    for name, new in result.renamed.items():
        tell(f"the input's own column {name} is kept as {new}; --prefix would keep its name")
    tell(result.signature)
