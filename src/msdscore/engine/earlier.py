"""What an earlier run has left: a finished output whose numbers are taken over where nothing has changed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msdscore.engine.assemble import COUNTS, MIXED, Naming
from msdscore.engine.plan import Chunk
from msdscore.errors import RowError, RunError
from msdscore.io.hashing import file_key
from msdscore.io.inputs.formats import open_records
from msdscore.io.outputs.manifest import REMEDY
from msdscore.scoring.measurement import NUMBERS, UNTOLD, Numbers
from msdscore.scoring.spec import ScorerSpec


@dataclass(frozen=True)
class EarlierRun:
    """A finished output with its run metadata."""

    output: Path
    notes: Mapping[str, Any]
    naming: Naming
    retry: bool  # whether rows that failed are to be tried again, though nothing of theirs has changed

    def is_up_to_date(self, keys: Sequence[str]) -> bool:
        """Whether the output is what a run over these chunks would write."""
        return self.notes.get("chunks") == list(keys) and not (self.retry and self.notes.get("failed"))

    def is_of(self, spec: ScorerSpec, work: Mapping[str, Any]) -> bool:
        """Whether the output was made by the same scorer from the same input, as far as can be told without loading."""
        described = description(spec)
        if described is None or self.notes.get("spec") != described:
            return False
        manifest = self.notes.get("manifest", {})
        return all(manifest.get(name) == value for name, value in json.loads(json.dumps(work)).items())

    def numbers(self, chunk: Chunk) -> list[Numbers | RowError] | None:
        """The numbers of a chunk's rows if the earlier run had them from the same pictures; None if it had not."""
        if chunk.key not in self._keys:
            return None
        found = [self._rows[row.index] for row in chunk.rows]
        if self.retry and any(isinstance(one, RowError) for one in found):
            return None
        return found

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(self.notes.get("chunks", ()))

    @cached_property
    def _rows(self) -> list[Numbers | RowError]:
        with ExitStack() as stack:
            records = open_records(self.output, format=None, until=stack)
            return [self._row(record.values) for record in records.read()]

    def _row(self, values: Mapping[str, Any]) -> Numbers | RowError:
        if error := values.get(self.naming.added("error")):
            return RowError(error)
        try:
            # Text files give text; every number was written so that it reads back to the last bit.
            found: dict[str, Any] = {name: _number(values[self.naming.added(name)], name) for name in NUMBERS}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.output}: its numbers cannot be read again ({error}); {REMEDY}") from error
        counts: dict[str, Any] = {name: int(found[name] or 0) for name in COUNTS}
        warnings = (values.get(self.naming.added("warnings")) or "").removesuffix(MIXED).removesuffix("; ")
        return Numbers(**{**found, **counts}, warnings=(warnings,) if warnings else ())


def _number(value: Any, name: str) -> float | None:
    """A number as it was written; what a bank cannot tell was written as nothing."""
    return None if name in UNTOLD and value in (None, "") else float(value)


def description(spec: ScorerSpec) -> dict[str, Any] | None:
    """A scorer's description if it always builds the same one; None for a folder, whose content may change."""
    if Path(spec.encoder).exists():
        return None
    plain = spec.to_dict() | {"bank": None if spec.bank is None else file_key(Path(spec.bank))}
    for name in ("batch_size", "decoders"):  # they change no number
        plain.pop(name)
    plain["cache"] = "float16" if spec.cache and spec.cache.half else None  # nor does a cache, unless it rounds
    return dict(json.loads(json.dumps(plain, default=str)))
