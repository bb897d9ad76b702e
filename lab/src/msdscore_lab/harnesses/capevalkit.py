"""MSD as a metric of capevalkit: a callable for its Python API, and a runner for its command line.

python -m msdscore_lab.harnesses.capevalkit install              # once: writes metric.toml into its metrics
capevalkit score --metric msdscore --predictions p.jsonl --output scores.json
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from msdscore.errors import ConfigError, MSDScoreError, RunError, require
from msdscore.forms.columns import columns_logged
from msdscore.io.files import source_key, write_bytes
from msdscore.rows.files import open_rows
from msdscore.rows.references import ReferenceFile
from msdscore.scoring.results import Scores
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore.version import __version__
from msdscore_torch.integrations.shared import ScorerLike, shared_scorer

NAME = "msdscore"
_REQUIREMENT = f"msdscore-lab=={__version__}"
_METRIC = """[metric]
name = "msdscore"
python = ">=3.11"
module = "msdscore_lab.harnesses.capevalkit"

[repository]
dir = "metrics/upstreams/msdscore"
uv_project = "metrics/upstreams/msdscore"

[runner]
command = ["python", "-m", "msdscore_lab.harnesses.capevalkit"]

[checks]
smoke = ["python", "-m", "msdscore_lab.harnesses.capevalkit", "--help"]
"""
_PROJECT = """[project]
name = "capevalkit-env-msdscore"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = [{requirement}]

[tool.uv]
package = false
"""


class CapevalkitSample(Protocol):
    """A sample that capevalkit passes to a metric."""

    id: str
    image: str
    prediction: str | None


def caption_metric(
    scorer: ScorerLike = DEFAULT_ENCODER, *, by: str = "msd"
) -> Callable[[Sequence[CapevalkitSample]], dict[str, float]]:
    """Create a callable for `capevalkit.evaluate_metric(benchmark=…, metric=caption_metric())`."""

    def metric(samples: Sequence[CapevalkitSample]) -> dict[str, float]:
        ids = [sample.id for sample in samples]
        lists = [getattr(sample, "references", None) or None for sample in samples]
        images = [sample.image for sample in samples]
        scores = _score(scorer, ids, images, [sample.prediction or "" for sample in samples], lists)
        if by not in scores.columns:
            raise ConfigError(f"expected one of {', '.join(scores.columns)}, got {by!r}")
        return dict(zip(ids, scores.columns[by].tolist(), strict=True))

    return metric


def run(
    predictions: Path, output: Path, *, image_dir: Path | None, scorer: ScorerLike, references: Path | None = None
) -> None:
    """Score capevalkit's rows (`id`, `caption` or `prediction`, `image`) and write its output file."""
    known_references = None if references is None else ReferenceFile(references, by_row=True)
    with open_rows(predictions, images=image_dir, format="jsonl", references=known_references) as source:
        rows = list(source.read())
    bad = [row for row in rows if row.error or row.image is None]
    if bad or not rows:
        why = f"{bad[0].id}: {bad[0].error}" if bad else "no rows"
        raise RunError(f"{predictions}: {len(bad)} of {len(rows)} predictions cannot be scored (first: {why})")
    ids = [row.id for row in rows]
    lists = [None if row.references is None else list(row.references) for row in rows]
    scores = _score(scorer, ids, [row.image for row in rows], [row.caption for row in rows], lists)
    titles = {name: "MSD" if name == "msd" else f"MSD-{name}" for name in columns_logged()} | {"ref_msd": "Ref-MSD"}
    known = {title: scores.columns[name] for name, title in titles.items() if name in scores.columns}
    known = {title: values for title, values in known.items() if not np.isnan(values).any()}
    result: dict[str, Any] = {title: float(values.mean()) for title, values in known.items()}
    result["per_item"] = {
        item: {title: float(values[number]) for title, values in known.items()} for number, item in enumerate(ids)
    }
    result["signature"] = scores.signature
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, json.dumps(result, indent=2, sort_keys=True).encode(), folder=output.parent)


def install(root: Path | None = None, *, requirement: str = _REQUIREMENT) -> Path:
    """Write manifest and environment of the metric under capevalkit's folder; return the path of the manifest."""
    if root is None:
        context: Any = require("capevalkit.infrastructure.runtime.context", extra="", of="capevalkit")
        root = Path(context.default_context().project_root)
    manifest, project = root / "metrics" / NAME / "metric.toml", root / "metrics" / "upstreams" / NAME
    for path, text in (
        (manifest, _METRIC),
        (project / "pyproject.toml", _PROJECT.format(requirement=json.dumps(requirement))),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode(), folder=path.parent)
    return manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Run the metric; with `install` as the first argument, write the manifest."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m msdscore_lab.harnesses.capevalkit", description=main.__doc__)
    try:
        if given[:1] == ["install"]:
            parser.add_argument(
                "--root", type=Path, help="capevalkit's folder (default: that of the installed package)"
            )
            parser.add_argument(
                "--requirement", default=_REQUIREMENT, help="requirement that uv installs for the runner"
            )
            arguments = parser.parse_args(given[1:])
            sys.stdout.write(f"{install(arguments.root, requirement=arguments.requirement)}\n")
        else:
            parser.add_argument("--predictions", type=Path, required=True, help="JSON lines with id, caption and image")
            parser.add_argument("--output", type=Path, required=True, help="output file of the scores, JSON")
            parser.add_argument("--references", type=Path, help="human captions, JSON lines by id; adds Ref-MSD")
            parser.add_argument("--image-dir", type=Path, help="folder of images for rows without an image")
            parser.add_argument("--encoder", default=DEFAULT_ENCODER, help="name of the encoder")
            arguments = parser.parse_args(given)
            run(
                arguments.predictions,
                arguments.output,
                image_dir=arguments.image_dir,
                scorer=arguments.encoder,
                references=arguments.references,
            )
    except MSDScoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _score(
    scorer: ScorerLike,
    ids: Sequence[str],
    images: Sequence[Any],
    captions: Sequence[str],
    references: Sequence[Sequence[str] | None],
) -> Scores:
    """Score all samples, each distinct image encoded once; raise if one fails, as capevalkit has no missing values.

    Samples of one image with different references are scored separately.
    """
    repeated = [sample for sample, count in Counter(ids).items() if count > 1]
    if repeated:
        raise RunError(f"{len(repeated)} ids name several samples (first: {repeated[0]}); expected each id once")
    keys = [
        (source_key(image), None if texts is None else tuple(texts))
        for image, texts in zip(images, references, strict=True)
    ]
    distinct = dict(zip(keys, images, strict=True))
    index = {key: number for number, key in enumerate(distinct)}
    lists = [texts for _, texts in distinct]
    scores = shared_scorer(scorer).score_batch(
        list(distinct.values()),
        captions,
        owner=[index[key] for key in keys],
        references=None if all(texts is None for texts in lists) else lists,
        progress=_progress(),
    )
    failed = [f"{sample}: {error}" for sample, error in zip(ids, scores.errors, strict=True) if error]
    if failed:
        raise RunError(f"{len(failed)} of {len(ids)} captions cannot be scored (first: {failed[0]})")
    return scores


def _progress() -> Callable[[int, int], None]:
    """Report to capevalkit's progress bar, if it expects counts in a file."""
    path, reported = os.environ.get("CAPEVALKIT_PROGRESS_FILE"), [0]

    def report(done: int, total: int) -> None:
        if path and done > reported[0]:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{done - reported[0]}\n")
            reported[0] = done

    return report


if __name__ == "__main__":
    raise SystemExit(main())
