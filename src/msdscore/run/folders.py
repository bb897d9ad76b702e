"""Folders of scores: their manifest, and the state of every shard."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msdscore.io import stores
from msdscore.io.arrow import pq
from msdscore.io.shards import ERRORS, shard_facts
from msdscore.io.targets import check_manifest, dump, parsed

FOLDER = "_run"  # within the folder of scores, where readers of Parquet datasets do not look
MANIFEST = "manifest.json"
STATES = "shards"  # beginning of the names of the files with the state of every shard
Entry = dict[str, Any]  # the state of a shard


def claim_folder(folder: str, manifest: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Store the manifest of a folder of scores unless it has one; a folder has the scores of one scorer only.

    Raises:
        RunError: the folder has scores of another scorer, or of other options, and `overwrite` is not set.
    """
    name = stores.join(stores.join(folder, FOLDER), MANIFEST)
    before = _read(name)
    if before is None and not overwrite:
        _check_shards(folder, manifest)
    if before is None or (overwrite and before != dump(manifest)):
        with stores.writing(name, keep=not overwrite) as file:
            file.write(dump(manifest))
        before = _read(name)  # of another run, if it was faster
    check_manifest(folder, parsed(name, before or b"{}"), manifest)


def _read(name: str) -> bytes | None:
    if not stores.exists(name):
        return None
    with stores.reading(name) as file:
        return bytes(file.read())


def _check_shards(folder: str, manifest: Mapping[str, Any]) -> None:
    """Raise if a folder without a manifest has scores of another signature."""
    for name in stores.in_folder(folder, "*.parquet"):
        facts = None
        with suppress(*ERRORS), stores.reading(name) as file:
            facts = shard_facts(pq.read_schema(file))
        if facts is not None:
            check_manifest(name, {"signature": facts.signature}, {"signature": manifest["signature"]})


def read_states(names: Sequence[str]) -> dict[str, Entry]:
    """Return the last state of every shard, by the name of its scores, in these files, which may be missing."""
    states: dict[str, Entry] = {}
    for name in names:
        for line in (_read(name) or b"").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line may be incomplete
                entry = dict(json.loads(line))
                states[str(entry["scores"])] = entry
    return states


def missing_scores(folder: str, present: Collection[str]) -> list[str]:
    """Return one line for each shard of the runs in a folder that has no scores; `present` are names of scores."""
    states = read_states(stores.in_folder(stores.join(folder, FOLDER), f"{STATES}*.jsonl"))
    missing = [entry for name, entry in states.items() if name not in present]
    return [f"{entry['source']}: {entry.get('error', 'not scored')}" for entry in missing]
