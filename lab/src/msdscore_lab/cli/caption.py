"""`msdscore caption`: generate captions with a model."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SPEED, option
from msdscore.cli.progress import bar, print_json, rows_file, tell

if TYPE_CHECKING:
    from msdscore_lab.captioners.writers import CaptionWriter

CAPTIONER = "Captioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionerOptions:
    """Captioner and decoding settings."""

    model: str = option(CAPTIONER, ..., "--model", "-m", help="Hub name, folder, or name at the endpoint.")
    url: str | None = option(
        CAPTIONER,
        None,
        help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; default: run the model locally.",
    )
    key_env: str = option(CAPTIONER, "OPENAI_API_KEY", help="Environment variable with the API key of the endpoint.")
    system: str | None = option(OUTPUT, None, help="Name of the captioner in the output; default: the model's name.")
    prompt: str | None = option(
        CAPTIONER, None, help="Prompt; for a model without a chat template, the beginning of the captions."
    )
    temperature: float = option(CAPTIONER, 0.0, min=0, help="Sampling temperature; 0 is greedy decoding.")
    top_p: float = option(CAPTIONER, 1.0, help="Probability mass for nucleus sampling.")
    max_tokens: int = option(CAPTIONER, 80, min=1, help="Maximum number of tokens per caption.")
    seed: int = option(CAPTIONER, 0, help="Random seed of a local model.")
    workers: int = option(SPEED, 4, min=1, help="Number of concurrent requests to an endpoint.")
    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    revision: str | None = option(CAPTIONER, None, help="Revision of the weights on the hub.")


def caption(
    source: Annotated[Path, typer.Argument(help="A folder of images, or a file of rows with images or their paths.")],
    *,
    output: Path = option(
        OUTPUT, ..., "--output", "-o", help="File of rows: .jsonl, .parquet, .csv or .json; - prints rows."
    ),
    captioner: CaptionerOptions,
    limit: int | None = option(INPUT, None, min=1, help="Maximum number of images, from the first."),
    batch_size: int = option(SPEED, 8, min=1, help="Images per batch; a crash loses at most one batch."),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Caption every image with a local model (transformers) or through an endpoint.

    Writes rows of image, caption and system, which `score`, `cococf build` and `rank-captioners` read. The prompt and
    the decoding settings are stored in the run metadata next to the output. The same command resumes an interrupted
    run.

    Exit codes: 0 all images captioned, 3 some images failed (their errors are in the output), 2 invalid usage.
    """
    from msdscore.io.targets import is_standard_output
    from msdscore_lab.captioners.run import CaptionRun, caption_images, list_images
    from msdscore_lab.captioners.writers import CaptioningSettings, endpoint_writer, load_writer
    from msdscore_lab.metrics.vlm.endpoint import Endpoint

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
