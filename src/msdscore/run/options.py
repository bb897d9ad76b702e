"""Options and summary of a run over a file of rows; importable without PyArrow."""

from collections.abc import Mapping
from dataclasses import dataclass

from msdscore.encoders.cached import CacheUse
from msdscore.errors import ConfigError
from msdscore.io.targets import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run, apart from the scorer.

    `overwrite` discards an existing output. `retry` scores parts with failed rows again (a finished run completely).
    `part_rows` is the number of rows that a crash loses at most, by default chosen for the encoder. `worst` adds a
    column with up to that many of the least supported words.
    """

    overwrite: bool = False
    retry: bool = False
    part_rows: int | None = None
    worst: int = 0

    def __post_init__(self) -> None:
        if self.part_rows is not None and self.part_rows < 1:
            raise ConfigError(f"part_rows must be at least 1, got {self.part_rows}")
        if self.worst < 0:
            raise ConfigError(f"worst must not be negative, got {self.worst}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFile(Summary):
    """Summary of a run; `scored` rows were scored by this call, `earlier` ones by an earlier call.

    The other rows could not be scored at all. `renamed` maps input columns to their names in the output, `cache` has
    the statistics of a cache on disk.
    """

    scored: int
    earlier: int
    signature: str
    renamed: Mapping[str, str]
    cache: CacheUse | None = None
