"""New tars with the kept samples alone, one for each tar that was scored."""

import json
import tarfile
from collections.abc import Collection, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.atomic import replacing, write_bytes
from msdscore.io.outputs.manifest import REMEDY
from msdscore.io.tar import sample_key
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
        _refuse_inputs(folder, files)
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
        content = (
            json.dumps({**mark, "tars": sorted(self._names.values())}, ensure_ascii=False, indent=1) + "\n"
        ).encode()
        self._folder.mkdir(parents=True, exist_ok=True)
        if notes.exists() and notes.read_bytes() == content:
            return
        there = sorted(self._folder.glob(f"*{_ENDING}"))
        if (there or notes.exists()) and not overwrite:
            raise RunError(f"{shortened(str(self._folder))}: holds another selection, or other tars; {REMEDY}")
        for name in {*_noted(notes), *self._names.values()}:
            (self._folder / name).unlink(missing_ok=True)
        notes.unlink(missing_ok=True)
        write_bytes(notes, content, folder=self._folder)


def copy_samples(source: str, target: Path, keys: Collection[str]) -> int:
    """Write a tar with all files of the samples whose keys are given, in their order; how many samples that is."""
    found: set[str] = set()
    try:
        with stores.fetched(source) as path, tarfile.open(path, "r:") as given, replacing(target) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
                for member in _whole_members(given):
                    key = sample_key(member.name)
                    if member.isfile() and key in keys:
                        made.addfile(member, given.extractfile(member))
                        found.add(key)
            lacking = next((key for key in keys if key not in found), None)
            if lacking is not None:
                raise InputError(f"{source}: has no sample {lacking!r}, which its scores name; score it again")
    except FileNotFoundError as error:
        hint = "select where it was scored, or score it by its whole path"
        raise InputError(f"{shortened(source)}: the tar that was scored is not there; {hint}") from error
    except tarfile.TarError as error:
        raise InputError(f"{shortened(source)}: the tar that was scored cannot be read ({error})") from error
    return len(found)


def _whole_members(given: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files of a tar up to where it is cut off, if it is: as far as it was scored."""
    members = iter(given)
    last = next(members, None)
    while last is not None:
        try:
            following = next(members, None)  # fails where the last one is cut off
        except tarfile.ReadError:
            return
        yield last
        last = following


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


def _refuse_inputs(folder: Path, files: list[ScoreFile]) -> None:
    """Refuse a folder that holds what is read: new tars have the names of those that were scored."""
    for file in files:
        for name in (file.name, "" if file.facts is None else file.facts.source):
            if name and not stores.is_address(name) and Path(name).resolve().parent == folder.resolve():
                what = f"{shortened(str(folder))}: holds {stores.base_name(name)}, an input of this command"
                raise RunError(f"{what}; choose another folder for the new tars")


def _noted(notes: Path) -> list[str]:
    """The tars of an earlier selection in the same folder."""
    try:
        return [Path(name).name for name in json.loads(notes.read_bytes()).get("tars", [])]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
