"""`msdscore caption`: generate captions with a model."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SPEED, option_in
from msdscore.cli.progress import bar, print_json, rows_file, tell

if TYPE_CHECKING:
    from msdscore.lab.captioners.writers import CaptionWriter

CAPTIONER = "Captioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionerOptions:
    """Captioner and decoding settings."""

    model: Annotated[str, option_in(CAPTIONER, "--model", "-m", help="Hub name, folder, or name at the endpoint.")]
    url: Annotated[
        str | None,
        option_in(
            CAPTIONER, help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; default: run the model locally."
        ),
    ] = None
    key_env: Annotated[str, option_in(CAPTIONER, help="Environment variable with the API key of the endpoint.")] = (
        "OPENAI_API_KEY"
    )
    system: Annotated[
        str | None, option_in(OUTPUT, help="Name of the captioner in the output; default: the model's name.")
    ] = None
    prompt: Annotated[
        str | None,
        option_in(CAPTIONER, help="Prompt; for a model without a chat template, the beginning of the captions."),
    ] = None
    temperature: Annotated[float, option_in(CAPTIONER, min=0, help="Sampling temperature; 0 is greedy decoding.")] = 0.0
    top_p: Annotated[float, option_in(CAPTIONER, help="Probability mass for nucleus sampling.")] = 1.0
    max_tokens: Annotated[int, option_in(CAPTIONER, min=1, help="Maximum number of tokens per caption.")] = 80
    seed: Annotated[int, option_in(CAPTIONER, help="Random seed of a local model.")] = 0
    workers: Annotated[int, option_in(SPEED, min=1, help="Number of concurrent requests to an endpoint.")] = 4
    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    revision: Annotated[str | None, option_in(CAPTIONER, help="Revision of the weights on the hub.")] = None


def caption(
    source: Annotated[Path, typer.Argument(help="A folder of images, or a file of rows with images or their paths.")],
    output: Annotated[
        Path, option_in(OUTPUT, "--output", "-o", help="File of rows: .jsonl, .parquet, .csv or .json; - prints rows.")
    ],
    captioner: CaptionerOptions,
    limit: Annotated[int | None, option_in(INPUT, min=1, help="Maximum number of images, from the first.")] = None,
    batch_size: Annotated[int, option_in(SPEED, min=1, help="Images per batch; a crash loses at most one batch.")] = 8,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Caption every image with a local model (transformers) or through an endpoint.

    Writes rows of image, caption and system, which `score`, `cococf build` and `rank-captioners` read. The prompt and
    the decoding settings are stored in the run metadata next to the output. The same command resumes an interrupted
    run.

    Exit codes: 0 all images captioned, 3 some images failed (their errors are in the output), 2 invalid usage.
    """
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.lab.captioners.run import CaptionRun, caption_images, list_images
    from msdscore.lab.captioners.writers import CaptioningSettings, endpoint_writer, load_writer
    from msdscore.lab.metrics.vlm.endpoint import Endpoint

    settings = CaptioningSettings(
        prompt=captioner.prompt, temperature=captioner.temperature, top_p=captioner.top_p,
        most_tokens=captioner.max_tokens, seed=captioner.seed,
    )  # fmt: skip

    def load() -> "CaptionWriter":
        if captioner.url is not None:
            endpoint = Endpoint(url=captioner.url, model=captioner.model, key_env=captioner.key_env)
            return endpoint_writer(endpoint, settings, captioner.workers)
        return load_writer(
            captioner.model, settings, device=captioner.device, dtype=captioner.dtype, revision=captioner.revision
        )

    file = None if is_standard_output(output) else output
    with rows_file(file) as target, bar("captions") as show:
        about = CaptionRun(
            system=captioner.system or Path(captioner.model).name, source=source, part=batch_size, overwrite=overwrite,
            identity=f"{captioner.model}@{captioner.url or 'local'}",
        )  # fmt: skip
        result = caption_images(list_images(source, limit=limit), load, target, settings, about, progress=show)
    where = f" -> {file}" if file else ""
    tell(f"{result.rows} images, {result.failed} failed, {result.earlier} captioned by an earlier run{where}")
    for reason in result.reasons:
        tell(f"  {reason}")
    if json and file:
        print_json({"output": str(file), **asdict(result)})
    raise typer.Exit(options.SOME_FAILED if result.failed else 0)
