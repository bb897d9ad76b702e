"""`msdscore caption`: let captioners describe images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, print_json, rows_file, tell

if TYPE_CHECKING:
    from msdscore.lab.captioners.run import CaptionedFile
    from msdscore.lab.captioners.writers import CaptionWriter


def caption(
    source: Annotated[Path, typer.Argument(help="A folder of images, or a file whose rows hold or name them.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Hub name, folder, or the endpoint's name of a model.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File of rows: .jsonl, .parquet, .csv or .json; - prints rows.")
    ],
    url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; without it, local.")
    ] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with the endpoint's key.")] = "OPENAI_API_KEY",
    system: Annotated[str | None, typer.Option(help="What the output calls the captioner; the model's name.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What to ask, or how captions of a plain model begin.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest words.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest words of this share.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per caption at most.")] = 80,
    seed: Annotated[int, typer.Option(help="Of drawn captions of a local model.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many images.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Questions that an endpoint gets side by side.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Images described together; a crash costs one lot.")] = 8,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Describe every image with a captioner, local (transformers) or behind an endpoint.

    Writes rows of image, caption and system, which `score`, `cococf build` and `rank-captioners` read; prompt and
    decoding are kept in the run metadata beside it. The same command goes on where it stopped.

    Exit codes: 0 all described, 3 some images failed and say why, 2 wrong usage.
    """
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.lab.captioners.run import CaptionRun, caption_images, list_images
    from msdscore.lab.captioners.writers import CaptioningSettings, endpoint_writer, load_writer
    from msdscore.lab.metrics.vlm.endpoint import Endpoint

    settings = CaptioningSettings(
        prompt=prompt, temperature=temperature, top_p=top_p, most_tokens=max_tokens, seed=seed
    )

    def load() -> "CaptionWriter":
        if url is not None:
            endpoint = Endpoint(url=url, model=model, key_env=key_env)
            return endpoint_writer(endpoint, settings, workers)
        return load_writer(model, settings, device=device, dtype=dtype, revision=revision)

    file = None if is_standard_output(output) else output
    with rows_file(file) as target, bar("captions") as show:
        about = CaptionRun(
            system=system or Path(model).name, identity=f"{model}@{url or 'local'}", source=source, part=batch_size,
            overwrite=overwrite,
        )  # fmt: skip
        result = caption_images(list_images(source, limit=limit), load, target, settings, about, progress=show)
    _tell(result, file, as_json=json)
    raise typer.Exit(options.SOME_FAILED if result.failed else 0)


def _tell(result: "CaptionedFile", output: Path | None, *, as_json: bool) -> None:
    from dataclasses import asdict

    where = f" -> {output}" if output else ""
    tell(f"{result.rows} images, {result.failed} failed, {result.earlier} described by an earlier run{where}")
    for reason in result.reasons:
        tell(f"  {reason}")
    if as_json and output:
        print_json({"output": str(output), **asdict(result)})
