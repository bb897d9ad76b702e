"""Select rows by a rule and write them atomically, with an optional survey.

It is written as DataComp's sorted uids, a list of keys, the selected rows, or new tars and Parquet files.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from msdscore.errors import ConfigError, InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pq
from msdscore.io.files import base_name, fingerprint, is_address, split_query
from msdscore.io.targets import REMEDY, check_target, is_standard_output, refuse_inputs
from msdscore.rows.tars import SHARED_KEY
from msdscore.run.folder import SIGNATURE_KEY, missing_scores
from msdscore.select.copies import copy_rows, copy_samples, write_sample_scores
from msdscore.select.rule import Rule, ScoreTable, Survey, choose, quoted, survey
from msdscore.select.scores import UID, ScoreFile, open_scores, parquet_rows, scored_source

SUFFIXES = (".npy", ".txt", ".parquet")
SOURCE_FILE = "source_file"  # column of the file that was scored, as it was named
NOTES = "selection.json"  # the rule and the scores that the shards of a folder were selected by
_UID_TYPE = np.dtype("u8,u8")  # the format of DataComp's resharder
_UID = re.compile("[0-9a-f]{32}")
_FETCHED = 1 << 20  # uids that are converted to numbers at once
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Selected:
    """Result of a selection: of `rows` rows `valid` had a value within the bounds.

    `threshold` is the value of the last selected row; `duplicates` are repeated uids or keys, which are written once.
    `missing` are shards of the folders of scores that have no scores, with the reason.
    """

    output: str
    files: int
    rows: int
    valid: int
    kept: int
    threshold: float | None
    duplicates: int
    signature: str
    missing: tuple[str, ...] = ()
    survey: Survey | None = None


def select(
    scores: Sequence[str],
    rule: Rule,
    output: str,
    *,
    overwrite: bool = False,
    show: int = 0,
    progress: Progress = lambda done, total: None,
) -> Selected:
    """Write the rows that a rule selects: uids (.npy), keys (.txt), scores (.parquet), or a folder of new shards.

    A folder gets one shard per scored tar or Parquet file, with its name, all its columns and the scores; those of a
    tar are in a Parquet table next to it. Scores and output may be paths or addresses (s3://…). With `show`, the
    result has a survey with that many rows of each kind.

    Raises:
        InputError: the scores cannot be read, or keys are not unique.
        RunError: the output exists with other content or cannot be written.
    """
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="msdscore-")))
            files = open_scores(scores, folder)
            if not files:
                raise InputError("expected at least one file of scores")
            _check_output(output, files)
            table = ScoreTable(files, folder)
            stack.callback(table.close)
            valid, kept, threshold = choose(table, rule)
            duplicates = _write(table, rule, output, overwrite=overwrite, progress=progress)
            surveyed = survey(table, rule, kept, show) if show else None
    except OSError as error:
        raise RunError(
            f"{shortened(output)}: cannot be written ({error.strerror or error}); check the disk, or choose another -o"
        ) from error
    names = [base_name(file.name) for file in files]
    folders = [
        name for name in scores if Path(name).is_dir() or (is_address(name) and not set("*{.") & set(base_name(name)))
    ]
    missing = [line for folder in folders for line in missing_scores(folder, names)]
    return Selected(
        output, len(files), table.rows, valid, kept, threshold, duplicates, table.signature, tuple(missing), surveyed
    )


def _check_output(output: str, files: Sequence[ScoreFile]) -> None:
    """Raise, before any work is done, if the output cannot or must not be written."""
    name, suffix = shortened(output), _suffix(output)
    if not output.strip():
        raise ConfigError("-o has no name; expected a file, a folder for shards, or - for standard output")
    if is_standard_output(output):
        return
    local = not is_address(output)
    if not suffix:
        if local and Path(output).exists() and not Path(output).is_dir():
            raise RunError(f"{name}: is a file; expected the name of a folder for shards")
        return
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ConfigError(f"{name}: unknown kind of output; expected a name ending in {known}, or a folder for shards")
    if local:
        check_target(Path(output), SUFFIXES, inputs=[file.name for file in files])
        refuse_inputs([Path(output)], [file.source for file in files if not is_address(file.source)])


def _suffix(output: str) -> str:
    """Return the extension of an output, which determines its format; empty for a folder of shards."""
    return PurePosixPath(base_name(output)).suffix.lower()


def _write(table: ScoreTable, rule: Rule, output: str, *, overwrite: bool, progress: Progress) -> int:
    """Write the selection; return the number of duplicate names."""
    if is_standard_output(output):
        keys = BytesIO()
        duplicates = _write_keys(table, keys, progress)
        sys.stdout.write(keys.getvalue().decode())
        return duplicates
    if not _suffix(output):
        _write_shards(table, output, rule, overwrite=overwrite, progress=progress)
        return 0
    with stores.writing(output, same=not overwrite) as file:
        if _suffix(output) == ".npy":
            return _write_uids(table, file)
        return (_write_keys if _suffix(output) == ".txt" else _write_rows)(table, file, progress)


def _write_uids(table: ScoreTable, file: IO[bytes]) -> int:
    """Write a sorted NumPy array of pairs of 64-bit numbers, one per uid of 32 hexadecimal digits, each once."""
    instead = "write a list of keys instead: -o keys.txt"
    for scores in table.files:
        if UID not in scores.schema.names:
            raise InputError(f"{shortened(scores.name)}: has no column {UID}; {instead}")
    table.ask(f"CREATE TABLE uids AS SELECT DISTINCT lower({UID}) AS uid FROM scores SEMI JOIN kept USING (row)")
    distinct = table.count("uids")
    header = {"descr": np.lib.format.dtype_to_descr(_UID_TYPE), "fortran_order": False, "shape": (distinct,)}
    np.lib.format.write_array_header_1_0(file, header)
    answer = table.ask("SELECT uid FROM uids ORDER BY uid")
    while rows := answer.fetchmany(_FETCHED):
        for (uid,) in rows:
            if uid is None or not _UID.fullmatch(uid):
                what = f"expected uids of 32 hexadecimal digits, got {shortened(repr(uid))}"
                raise InputError(f"{shortened(table.files[0].name)}: {what}; {instead}")
        digits = bytes.fromhex("".join(uid for (uid,) in rows))
        file.write(np.frombuffer(digits, dtype=">u8,>u8").astype(_UID_TYPE).tobytes())
    return table.count("kept") - distinct


def _write_keys(table: ScoreTable, file: IO[bytes], progress: Progress) -> int:
    """Write one key per line, in the order of the scores; captions of one tar sample share a key, written once."""
    _reject_shared_keys(table)
    duplicates = 0
    for number, scores in enumerate(table.files):
        keys = scores.texts(scores.key_name, table.kept_of(number))
        distinct = dict.fromkeys(keys)
        for key in distinct:
            if key is None or "\n" in key or "\r" in key:
                what = f"{shortened(scores.name)}: key {shortened(repr(key))} contains a newline"
                raise InputError(f"{what}; write rows instead: -o kept.parquet")
        file.write("".join(f"{key}\n" for key in distinct).encode())
        duplicates += len(keys) - len(distinct)
        progress(number + 1, len(table.files))
    return duplicates


def _reject_shared_keys(table: ScoreTable) -> None:
    """Raise for ambiguous keys: in several files, of several samples, or repeated in a file of rows."""
    names = list(dict.fromkeys(file.key_name for file in table.files))
    key = "coalesce(" + ", ".join(f"{quoted(name)}::VARCHAR" for name in names) + ")"
    rows = [number for number, file in enumerate(table.files) if file.facts is None or not file.facts.is_of_tar]
    warned = any("warnings" in file.schema.names for file in table.files)
    alone = f" OR (count(*) > 1 AND min(file) IN ({', '.join(map(str, rows))}))" if rows else ""
    alone += f" OR bool_or(warnings::VARCHAR LIKE '%{SHARED_KEY}%')" if warned else ""
    shared: Any = None
    # Compared by hash first, in a third of the memory: different hashes mean different keys.
    for value in (f"hash({key})", key):
        shared = table.ask(
            f"SELECT key, min(file), max(file) FROM (SELECT {value} AS key, file, kept.row AS kept"
            f"{', warnings' if warned else ''} FROM scores LEFT JOIN kept USING (row)) "
            f"GROUP BY key HAVING count(kept) > 0 AND (min(file) <> max(file){alone}) LIMIT 1"
        ).fetchone()
        if shared is None:
            return
    first, last = (shortened(table.files[number].name) for number in shared[1:])
    where = f"two rows of {first}" if first == last else f"{first} and {last}"
    raise InputError(
        f"key {shortened(repr(shared[0]))} is ambiguous: it names rows of {where}; "
        "run select separately for each file, or write rows: -o kept.parquet"
    )


def _write_rows(table: ScoreTable, file: IO[bytes], progress: Progress) -> int:
    """Write the selected rows with all their columns, as Parquet with the signature.

    Rows of score shards, or of several files, also get the column `source_file`, since keys may repeat among them.
    """
    first = table.files[0]
    schema = first.schema.with_metadata({SIGNATURE_KEY: first.signature.encode()} if first.signature else {})
    written, name = schema, SOURCE_FILE
    if len(table.files) > 1 or first.facts is not None:
        while name in schema.names:
            name = f"scored_{name}"
        written = schema.append(pa.field(name, pa.string()))
    for scores in table.files:
        if not scores.schema.equals(schema):
            names = shortened(", ".join(scores.schema.names), 300)
            raise InputError(f"{shortened(scores.name)}: its columns differ from those of the first file ({names})")
    with pq.ParquetWriter(file, written, compression="zstd") as writer:
        for number, scores in enumerate(table.files):
            for batch in parquet_rows(scores.path, table.kept_of(number)):
                source = [pa.array([scores.source] * len(batch))] if written is not schema else []
                writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, *source], schema=written))
            progress(number + 1, len(table.files))
    return 0


def _write_shards(table: ScoreTable, folder: str, rule: Rule, *, overwrite: bool, progress: Progress) -> None:
    """Write a new shard for each scored tar or Parquet file; finished ones of the same selection stay."""
    names = _shard_names(table.files, folder)
    _claim(folder, names, _notes(names, table, rule), overwrite=overwrite)
    for number, file in enumerate(table.files):
        target = stores.join(folder, names[number])
        if not stores.exists(target):
            rows = table.kept_of(number)
            assert file.facts is not None, "checked by `_shard_names`"
            with scored_source(file.facts) as source:
                if file.facts.is_of_tar:  # its table comes first: a finished tar has one
                    with stores.writing(_table_of(target)) as out:
                        write_sample_scores(file, source, rows, out)
                with stores.writing(target) as out:
                    (copy_samples if file.facts.is_of_tar else copy_rows)(file, source, rows, out)
        progress(number + 1, len(table.files))


def _table_of(shard: str) -> str:
    """Return the name of the table of scores next to a new tar."""
    base, query = split_query(shard)
    return f"{base[:-4]}.parquet{query}"


def _shard_names(files: Sequence[ScoreFile], folder: str) -> list[str]:
    """Return the names of the new shards, which are those of the scored ones.

    Raises:
        InputError: scores are of another kind of input, or two shards have one name.
        RunError: the folder contains an input of this command.
    """
    names: list[str] = []
    for file in files:
        source = file.source
        instead = "or write the selected rows without their images: -o kept.parquet"
        if file.facts is None:
            again = f"score the data into a folder (msdscore score {shortened(file.source)} -o scores)"
            raise InputError(
                f"{shortened(file.name)}: new shards are copied from scored ones, and this is a single scored file; "
                f"{again} and select from that, {instead}"
            )
        if not split_query(source)[0].lower().endswith((".tar", ".parquet")):
            what = f"was scored from {shortened(source)}; new shards are copies of tars or Parquet files"
            raise InputError(f"{shortened(file.name)}: {what}, {instead.removeprefix('or ')}")
        if base_name(source) in names:
            raise InputError(f"two shards are called {base_name(source)}; run select separately for each")
        names.append(base_name(source))
        for name in (file.name, source):  # new shards have the names of those that were scored
            if _parent(name) == _parent(stores.join(folder, "x")):
                what = f"{shortened(folder)}: contains {base_name(name)}, an input of this command"
                raise RunError(f"{what}; choose another folder for the new shards")
    return names


def _parent(name: str) -> str:
    return split_query(name)[0].rpartition("/")[0] if is_address(name) else str(Path(name).resolve().parent)


def _notes(names: list[str], table: ScoreTable, rule: Rule) -> bytes:
    """Return the rule and the scores of a selection as JSON: equal for equal selections."""
    scores = [(file.name, file.rows, file.signature, file.facts and file.facts.fingerprint) for file in table.files]
    quota = None if rule.keep is None else str(rule.keep.count or rule.keep.share)
    selection = {
        "rule": {name: value for name, value in (asdict(rule) | {"keep": quota}).items() if name != "without" or value},
        "signature": table.signature,
        "files": len(table.files),
        "scores": fingerprint(*map(repr, scores)),
        "shards": sorted(names),
    }
    return (json.dumps(selection, ensure_ascii=False, indent=1) + "\n").encode()


def _claim(folder: str, names: list[str], content: bytes, *, overwrite: bool) -> None:
    """Write the notes of a selection to its folder; raise if it has shards of another one, or remove them."""
    notes = stores.join(folder, NOTES)
    before = stores.content(notes) or b""
    if before == content:
        return
    suffixes = {".parquet", *(_suffix(name) for name in names)}  # a tar has a table of its scores
    others = (stores.matching(stores.join(folder, f"*{suffix}")) for suffix in suffixes)
    if (before or any(others)) and not overwrite:
        raise RunError(f"{shortened(folder)}: contains another selection, or other shards; {REMEDY}")
    earlier: list[str] = []
    with suppress(ValueError, AttributeError, TypeError):
        earlier = [PurePosixPath(name).name for name in json.loads(before).get("shards", [])]
    for name in {*earlier, *names}:
        stores.remove(stores.join(folder, name))
        if name.lower().endswith(".tar"):
            stores.remove(stores.join(folder, _table_of(name)))
    with stores.writing(notes) as file:
        file.write(content)
