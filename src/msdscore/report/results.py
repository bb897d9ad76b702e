"""Scored files: their columns, their rows with images, and the means of their captioners."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import VERDICT_AT, verdict
from msdscore.errors import InputError
from msdscore.forms.base import Form
from msdscore.forms.registry import COLUMNS, added, columns_logged, form_of, forms, lower_is_better, number_columns
from msdscore.intervals import Interval, Resampling, bootstrap_mean
from msdscore.io.files import base_name
from msdscore.rows.files import open_rows
from msdscore.rows.formats import open_records
from msdscore.rows.rules import IMAGE_NAMES, Row, first_of
from msdscore.run.folder import file_facts
from msdscore.select.scores import open_scores, shard_rows

Floats = npt.NDArray[np.float64]
HOW = Resampling(samples=500)  # enough for intervals on a screen; a page of 50,000 rows has 50 of them
SYSTEM_NAMES = ("system", "captioner", "model")
_IMAGE_KEYS = (*IMAGE_NAMES, "image_id")
_CELL = 200  # characters of another column that the page shows


@dataclass(frozen=True, slots=True)
class Results:
    """A scored file, column by column; a missing number is NaN, a missing text is empty."""

    name: str
    signature: str
    ids: tuple[str, ...]
    captions: tuple[str, ...]
    images: tuple[str, ...]  # keys of the images: a path or an id
    errors: tuple[str, ...]
    systems: tuple[str, ...] | None
    numbers: Mapping[str, Floats]
    others: Mapping[str, tuple[str, ...]]
    verdicts: tuple[str, ...] = ()  # of rows with a match; empty if it was withheld
    verdict_at: tuple[float, float] = VERDICT_AT
    form: type[Any] = Form  # its class

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def metrics(self) -> list[str]:
        """Names of the scores in the file."""
        return [name for name in ("ref_msd", "soft_msd", *columns_logged()) if name in self.numbers]

    @property
    def clusters(self) -> list[str]:
        """One label per image; each row whose image has no name gets a separate label."""
        return [name or f"\0{number}" for number, name in enumerate(self.images)]


def read_results(path: Path) -> Results:
    """Read a file that `msdscore score` wrote, or a folder of scored shards; rows of a folder have a column `shard`."""
    run, files = file_facts(path), [path]
    limits = run.verdict_at
    if path.is_dir():
        shards = open_scores([str(path)], path)  # in order, with one signature
        files = [shard.path for shard in shards]
        limits = limits if shards[0].facts is None else shards[0].facts.verdict_at
    rows, names = _read_rows(files, name_shards=path.is_dir())
    signature = signature_of(files[0]) or run.signature
    form = form_of(signature, names)
    if form is None or not {"msd", *form.plotted} <= set(names):
        expected = f"msd, and {' or '.join(' and '.join(known.plotted) for known in forms())}"
        raise InputError(
            f"{path}: expected a scored file with {expected}; found: {', '.join(names) or 'none'}; run msdscore score"
        )
    caption, system = run.columns.find("caption", names), first_of(names, SYSTEM_NAMES)
    image = run.columns.find("image", names) or first_of(names, _IMAGE_KEYS)
    used = {"id", caption, system, *COLUMNS} - {"word_notes", "warnings"}
    columns = _numbers(rows, names, form)
    return Results(
        name=path.name,
        signature=signature,
        ids=tuple(_text(row.get("id", number)) for number, row in enumerate(rows)),
        captions=_texts(rows, caption),
        images=_texts(rows, image),
        errors=_texts(rows, "error"),
        systems=None if system is None else _texts(rows, system),
        numbers=columns,
        others={name: tuple(text[:_CELL] for text in _texts(rows, name)) for name in names if name not in used},
        verdicts=_verdicts(rows, columns.get("match"), limits),
        verdict_at=limits,
        form=form,
    )


def _verdicts(
    rows: Sequence[Mapping[str, Any]], matches: Floats | None, limits: tuple[float, float]
) -> tuple[str, ...]:
    """Return the verdict of every row, empty for a row without one.

    It is that of the file, where warnings have withheld some; a file without this column gets the verdicts of its
    matches.
    """
    if matches is None:
        return ("",) * len(rows)
    return tuple(
        _text(row["verdict"]) if "verdict" in row else verdict(None if np.isnan(match) else match, at=limits) or ""
        for row, match in zip(rows, matches.tolist(), strict=True)
    )


def _read_rows(files: Sequence[Path], *, name_shards: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of all files, with `name_shards` also the name of the file of each, and their columns."""
    rows, columns = list[dict[str, Any]](), dict[str, None]()
    for file in files:
        with ExitStack() as stack:
            records = open_records(file, format=None, until=stack)
            shard = {"shard": file.stem} if name_shards else {}
            rows += [record.values | shard for record in records.read()]
        columns |= dict.fromkeys(records.columns or ())
    return rows, list(columns | dict.fromkeys(name for row in rows for name in row))


def _numbers(rows: Sequence[Mapping[str, Any]], present: Sequence[str], form: type[Form]) -> dict[str, Floats]:
    """Return the numeric columns without those that no row has, except for those of every score."""
    known = [name for name in number_columns(tuple(COLUMNS)) if name in present]
    columns = {name: np.array([_number(row.get(name)) for row in rows]) for name in known}
    needed = {*added(Form), *form.plotted} - {"match"}
    return {name: values for name, values in columns.items() if name in needed or not np.isnan(values).all()}


def signature_of(path: Path, *, signed: bool = False) -> str:
    """Return the signature in the schema of a Parquet file, with `signed` that of its references; empty if none."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        metadata = pq.read_schema(path).metadata or {}
        plain = metadata.get(b"msdscore", b"")
        return str((metadata.get(b"signed", plain) if signed else plain).decode())
    return ""


def _texts(rows: Sequence[Mapping[str, Any]], name: str | None) -> tuple[str, ...]:
    return tuple("" if name is None else _text(row.get(name)) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a stored image: its path identifies it
        value = value.get("path")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return "; ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def rows_with_images(scored: Path, given: Path | None, images: Path | None, wanted: Collection[int]) -> dict[int, Row]:
    """Return the rows at the `wanted` positions of a scored file, or a folder of score shards, with their images.

    `given` is the file that was scored, or the folder of the shards that were. Empty if no file names any image.
    """
    is_table = scored.is_dir() or scored.suffix.lower() == ".parquet"
    shards = open_scores([str(scored)], Path()) if wanted and is_table else []
    if not shards or shards[0].facts is None:
        return {row.index: row for row in scored_rows(scored, given, images, wanted)} if wanted else {}
    rows, start = dict[int, Row](), 0
    for shard in shards:
        positions = np.array(sorted(at - start for at in wanted if start <= at < start + shard.rows), dtype=np.int64)
        if len(positions) and shard.facts is not None:
            texts = zip(shard.texts("key", positions), shard.texts("caption", positions), strict=True)
            known = dict(zip(positions.tolist(), texts, strict=True))
            copy = given / base_name(shard.facts.source) if given and given.is_dir() else given
            read = shard_rows(shard.facts, known, copy=None if copy is None else str(copy), images=images)
            rows |= {start + position: row for position, row in read.items()}
        start += shard.rows
    return rows


def scored_rows(
    scored: Path, given: Path | None, images: Path | None, wanted: Collection[int] | None = None
) -> Iterator[Row]:
    """Yield the rows of a scored file with their images, all or those at the `wanted` positions.

    They are read from the file `given`, else from the one that was scored if it has not changed (it has images
    stored as bytes, and paths relative to it), else from the scores themselves.
    """
    run = file_facts(scored)
    original = Path(run.source) if run.source not in ("", "-") and Path(run.source).exists() else None
    files = [given] if given else [scored] if images else [original, scored]
    for file in filter(None, files):
        folder = images or (run.folder if file == original and run.folder and run.folder.is_dir() else None)
        try:
            source = open_rows(file, images=folder, columns=run.columns)
        except InputError:  # a file whose rows name no image
            if file == given:
                raise
            continue
        with source:
            if file == original and source.fingerprint != run.fingerprint:
                continue
            yield from source.read() if wanted is None else source.read_at(wanted)
            return


def standings(results: Results, metric: str) -> list[tuple[str, int, Interval]]:
    """Return the name, number of captions and mean of each captioner, best first; whole images are resampled."""
    if results.systems is None:
        return []
    systems, values, clusters = np.array(results.systems), results.numbers[metric], np.array(results.clusters)
    means = []
    for name in sorted(set(results.systems)):
        chosen = (systems == name) & ~np.isnan(values)
        if chosen.any():
            mean = bootstrap_mean(values[chosen], clusters=clusters[chosen], how=HOW)
            means.append((name, int(chosen.sum()), mean))
    return sorted(means, key=lambda each: each[2].value, reverse=metric not in lower_is_better())
