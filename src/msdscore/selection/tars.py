"""New tars with the kept samples alone, one for each tar that was scored."""

import json
import tarfile
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.atomic import replacing, write_bytes
from msdscore.io.outputs.manifest import REMEDY
from msdscore.selection.scores import ScoreFile, ScoreRows
from msdscore.selection.top import Mask

NOTES = "selection.json"  # what the tars of a folder were selected by
_ENDING = ".tar"


class TarFolder:
    """A folder of tars; a tar that an earlier call has finished for the same selection is left as it is."""

    duplicates = 0

    def __init__(self, folder: Path, files: list[ScoreFile], mark: dict[str, Any], *, overwrite: bool) -> None:
        self._folder = folder
        self._names = _names(files)
        self._current: ScoreFile | None = None
        self._keys: set[str] = set()
        self.written = self.samples = 0
        self._own(mark, overwrite=overwrite)

    def columns(self, file: ScoreFile) -> tuple[str, ...]:
        """The keys."""
        return (file.key_name,)

    def add(self, rows: ScoreRows, kept: Mask) -> None:
        """Remember the keys of kept rows; when the next file begins, the tar of the last one is written."""
        if rows.file is not self._current:
            self._finish()
            self._current = rows.file
        keys = rows.texts(rows.file.key_name).to_pylist()
        self._keys.update(key for key, wanted in zip(keys, kept.tolist(), strict=True) if wanted)

    def close(self) -> None:
        """Write the last tar."""
        self._finish()

    def _finish(self) -> None:
        file, keys = self._current, self._keys
        self._current, self._keys = None, set()
        if file is None or file.facts is None:
            return
        target = self._folder / self._names[file.name]
        if not target.exists():
            self.samples += copy_samples(file.facts.source, target, keys)
            self.written += 1

    def _own(self, mark: dict[str, Any], *, overwrite: bool) -> None:
        notes = self._folder / NOTES
        content = (json.dumps(mark, ensure_ascii=False, indent=1) + "\n").encode()
        self._folder.mkdir(parents=True, exist_ok=True)
        if notes.exists() and notes.read_bytes() == content:
            return
        there = sorted(self._folder.glob(f"*{_ENDING}"))
        if (there or notes.exists()) and not overwrite:
            raise RunError(f"{shortened(str(self._folder))}: holds another selection, or other tars; {REMEDY}")
        notes.unlink(missing_ok=True)
        for name in self._names.values():
            (self._folder / name).unlink(missing_ok=True)
        write_bytes(notes, content, folder=self._folder)


def copy_samples(source: str, target: Path, keys: Collection[str]) -> int:
    """Write a tar with all files of the samples whose keys are given, in their order; how many samples that is."""
    found: set[str] = set()
    try:
        with stores.fetched(source) as path, tarfile.open(path, "r:") as given, replacing(target) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
                for member in given:
                    key = sample_key(member.name)
                    if member.isfile() and key in keys:
                        made.addfile(member, given.extractfile(member))
                        found.add(key)
            lacking = next((key for key in keys if key not in found), None)
            if lacking is not None:
                raise InputError(f"{source}: has no sample {lacking!r}, which its scores name; score it again")
    except (tarfile.TarError, FileNotFoundError) as error:
        raise InputError(f"{shortened(source)}: the tar that was scored cannot be read ({error})") from error
    return len(found)


def sample_key(name: str) -> str:
    """The key of a file in a tar: its name up to the first dot, with its folder.

    >>> sample_key("000000012.jpg"), sample_key("a/b.c.json")
    ('000000012', 'a/b')
    """
    path = PurePosixPath(name)
    return str(path.parent / path.name.partition(".")[0])


def selection_mark(files: list[ScoreFile], rule: dict[str, Any]) -> dict[str, Any]:
    """What makes two selections the same: the rule, and the scores it was applied to."""
    digest = blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.name}\n{file.rows}\n{file.signature}\n".encode())
        digest.update(b"" if file.facts is None else file.facts.fingerprint.encode())
    signature = next((file.signature for file in files if file.signature), "")
    return {"rule": rule, "signature": signature, "files": len(files), "scores": digest.hexdigest()}


def _names(files: list[ScoreFile]) -> dict[str, str]:
    """The name of the new tar of every file of scores."""
    found: dict[str, str] = {}
    for file in files:
        source = "" if file.facts is None else file.facts.source
        if not source.lower().partition("?")[0].endswith(_ENDING):
            raise InputError(f"{shortened(file.name)}: was not scored from a tar; write a list of keys: -o keys.txt")
        name = stores.base_name(source)
        if name in found.values():
            raise InputError(f"two tars are called {name}; select from them apart")
        found[file.name] = name
    return found
