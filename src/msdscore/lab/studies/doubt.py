"""Shares of true and of false captions with a word in doubt, by the threshold of the p-value.

The curve shows the cost of a threshold (true captions that are flagged) and its benefit (false ones).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError, InputError
from msdscore.lab.benchmarks.base import Pair, clusters
from msdscore.lab.stats.ranks import auc, prepare
from msdscore.lab.stats.resample import bootstrap_share
from msdscore.lab.studies.context import Study, measure_readable, require_words
from msdscore.lab.studies.table import Column, Plot, Row, Table, per_cent
from msdscore.scoring.pipeline import Pipeline

BENCHMARK = "sugarcrepe"  # in a folder
ROWS = "pairs"  # a file of rows with `image`, `caption` (true) and `negative_caption` (false)
THRESHOLDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
UNJUDGED = 1.0  # for a caption without a judged word, which is never in doubt
Floats = npt.NDArray[np.float64]


def doubt(study: Study, *, benchmark: Sequence[str] = ()) -> list[Table]:
    """Share of true and of false captions with a word in doubt, by threshold.

    `--root` is a file of rows with `image`, `caption` and `negative_caption`, or the folder of a benchmark of pairs.
    """
    if len(benchmark) > 1:
        raise ConfigError(f"study doubt takes one benchmark of pairs, got {', '.join(benchmark)}")
    is_file = study.root.is_file()
    name = benchmark[0] if benchmark else ROWS if is_file else BENCHMARK
    title = study.root.name if is_file else name
    pairs = study.pairs(name)
    if not pairs:
        raise InputError(f"expected pairs of a true and a false caption in {title}, got none")
    pipeline = study.pipeline()
    require_words(pipeline)
    rows = study.rows("doubt", pairs, lambda batch: smallest_p_values(pipeline, batch), pipeline, benchmark=name)
    return [curve(np.array(rows, dtype=np.float64), clusters(pairs), title, pipeline.signature)]


def smallest_p_values(pipeline: Pipeline, pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Return the smallest p-value of the words of the true and the false caption of every pair; NaN if unreadable."""
    texts = [caption for pair in pairs for caption in pair.captions]
    cells = [(number // 2, number) for number in range(len(texts))]
    readable, measured = measure_readable(pipeline, [pair.image for pair in pairs], texts, cells)
    smallest = np.full(len(texts), np.nan)
    for position, number in enumerate(readable):
        assert measured is not None, "something could be read"
        units = pipeline.config.units(measured, position)
        values = [unit.p_value for unit in units if unit.content and unit.p_value is not None]
        smallest[number] = min(values, default=UNJUDGED)
    return [(float(true), float(false)) for true, false in smallest.reshape(-1, 2)]


def curve(smallest: Floats, images: npt.NDArray[Any], title: str, signature: str) -> Table:
    """Return both shares by threshold, from the smallest p-values (true, false) of every pair."""
    known = ~np.isnan(smallest).any(axis=1)
    if not known.any():
        raise InputError("no pair could be read")
    true, false = smallest[known].T
    rows: list[Row] = []
    for threshold in THRESHOLDS:
        flagged = [bootstrap_share((side < threshold).astype(float), clusters=images[known]) for side in (true, false)]
        rows.append({"threshold": threshold, "true": flagged[0], "false": flagged[1]})
    labels = np.repeat([1.0, 0.0], len(true))
    area = auc(prepare(np.concatenate([true, false]), labels))
    notes = [
        "95 % cluster-bootstrap intervals over images",
        f"AUC of a caption's smallest p-value, true against false: {100 * area:.1f}",
    ]
    notes += [f"{int((~known).sum())} pairs could not be read"] if not known.all() else []
    return Table(
        name="rows",
        title=f"Captions with a word in doubt, per cent ({int(known.sum())} pairs of {title})",
        columns=[Column("threshold", "p-value below", "g"), per_cent("true", "true captions"),
                 per_cent("false", "false captions")],
        rows=rows,
        notes=notes,
        signature=signature,
        facts={"auc": area, "pairs": int(known.sum())},
        plots=[Plot(x="threshold", y=["true", "false"], title="Captions with a word in doubt",
                    x_label="threshold of the p-value", y_label="per cent", logarithmic=True)],
    )  # fmt: skip
