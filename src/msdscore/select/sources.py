"""The shards that were scored: their rows by position."""

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msdscore.errors import InputError, MSDScoreError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa
from msdscore.io.columns import ColumnNames
from msdscore.io.files import TarImage
from msdscore.io.rows import Row, open_rows
from msdscore.io.shards import ShardFacts

Known = Mapping[int, tuple[str | None, str | None]]  # position of a row -> its key and caption in the scores


@contextmanager
def scored_source(facts: ShardFacts, copy: str | None = None) -> Iterator[Path]:
    """Provide a local path to the shard that was scored, or to a copy of it.

    Raises:
        InputError: it is missing, unreadable, or has changed since.
    """
    source, kind = copy or facts.source, "tar" if facts.is_of_tar else "file"
    try:
        if stores.mark(source).partition("@")[0] != facts.fingerprint.partition("+")[0].partition("@")[0]:
            raise InputError(f"{shortened(source)}: is not the {kind} that was scored; score it again")
        with stores.fetched_shard(source) as path:
            yield path
    except (tarfile.TarError, pa.ArrowException) as error:
        raise InputError(f"{shortened(source)}: the scored {kind} cannot be read ({error})") from error
    except (FileNotFoundError, InputError) as error:
        if isinstance(error, InputError) and "no such file" not in str(error):
            raise
        hint = "run the command in the folder where it was scored, or score it by its absolute path"
        raise InputError(f"{shortened(source)}: the scored {kind} does not exist; {hint}") from error


def shard_rows(
    facts: ShardFacts, known: Known, *, copy: str | None = None, images: Path | None = None
) -> dict[int, Row]:
    """Return the rows of a scored shard at these positions; if it cannot be read, all have the error.

    `copy` is another location of the shard, `images` another folder of its images.
    """
    try:
        with scored_source(facts, copy) as path:
            rows = {row.index: row for row in rows_at(facts, path, known, images=images)}
            if path == Path(copy or facts.source):
                return rows
            # A copy of a remote tar exists only within this block.
            sources = {index: row.source.read() for index, row in rows.items() if isinstance(row.source, TarImage)}
            return {index: row._replace(source=sources.get(index, row.source)) for index, row in rows.items()}
    except MSDScoreError as error:
        reason = str(error).partition(";")[0]  # what to do about it differs from command to command
        return {index: Row(index, "", None, None, None, {}, error=reason) for index in known}


def rows_at(facts: ShardFacts, path: Path, known: Known, *, images: Path | None = None) -> Iterator[Row]:
    """Yield the rows of a shard at these positions, with their images.

    Raises:
        InputError: the shard has another key or caption at one of the positions.
    """
    left, kind, options = dict(known), "tar" if facts.is_of_tar else "file", facts.options
    names = ColumnNames(**options.get("columns", {}))
    with open_rows(path, images=images or options.get("images"), columns=names, hashed=False) as source:
        for row in source.read_at(known):
            key, caption = left.pop(row.index)
            is_other = None not in (caption, row.caption) and row.caption != caption
            if is_other or (facts.is_of_tar and str(row.columns.get("key") or row.id) != key):
                what = f"row {row.index} is not {key!r} as it was scored"
                raise InputError(f"{shortened(str(path))}: {what}; score the {kind} again")
            yield row
    if left:
        raise InputError(f"{shortened(str(path))}: has fewer rows than were scored; score the {kind} again")
