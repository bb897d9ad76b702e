"""Files of weights: checkpoints in folders, the packages that contain them, and their hashes.

Files up to `WHOLE_UP_TO` bytes are read in full at every load: if their folder lists their size and CRC-32 (`CHECKS`,
written by `write_sums`) and both agree, the SHA-256 is the listed one, which takes a fifth of the time of computing
it. A larger file without such a list is read in full once; its hash is reused while its size and timestamps are the
same and `SAMPLED` blocks, drawn anew at every load, match the recorded ones. Within `loading(verify=True)` the SHA-256
of every file is computed from all of its bytes.
"""

import json
import os
import random
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from hashlib import blake2b, file_digest, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from msdscore import threads
from msdscore.errors import WeightsError, install_line

CONFIG = "config.json"
BANK = "bank.safetensors"  # the background bank of an encoder
META = "meta.json"  # origin and licence of an encoder, and `bank`, the digest of its bank
# Files that do not change vectors. Fused graphs compute the functions of the exported ones, which are signed.
_UNSIGNED = (BANK, META, "image.fused.onnx", "text.fused.onnx")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SMALL_FILES = (".json", ".txt", ".model")
_PACKAGE = "package:"

WHOLE_UP_TO = 256 << 20
BLOCK = 4 << 20
SAMPLED = 32
SUMS = "SHA256SUMS"  # lists the files of a folder as `sha256sum` does
CHECKS = "CRC32SUMS"  # the CRC-32, size and SHA-256 of the same files
LISTED = (".json", ".onnx", ".safetensors", ".txt")  # of the files of an encoder
_CHUNK = 1 << 20

# A file that changed a moment ago may change again within one tick of its file system's clock.
_SETTLED_SECONDS = 3.0


# Whether the current load verifies, and the hashes so far: a file used by several parts is hashed once.
_current: ContextVar[tuple[bool, dict[str, str]] | None] = ContextVar("load", default=None)

Needs = Sequence[tuple[str, ...]]  # further files, each as its acceptable names


@dataclass(frozen=True, slots=True)
class Format:
    """The configuration file of a kind of checkpoint, and the names of its weights in order of preference."""

    config: str = CONFIG
    weights: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")


TRANSFORMERS = Format()
OPEN_CLIP = Format("open_clip_config.json", ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with all the files of a model, and a short hash that identifies them."""

    source: str
    folder: Path
    mark: str  # eight digits: of the hub's commit, or of a local folder's content
    form: Format = TRANSFORMERS

    def signed(self, name: str) -> str:
        """The name it was loaded by and its hash; a folder is called by its last component, whatever its location."""
        # A folder whose name matches a short name is a different encoder.
        is_path = Path(name).expanduser().resolve() == self.folder.resolve()
        label = self.folder.resolve().name if is_path else name
        return f"{label}@{self.mark}"

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one of its JSON files.

        Raises:
            WeightsError: the file is missing or is not a JSON object.
        """
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise WeightsError(f"{self.source!r} has no {name}; copy it there from its base checkpoint") from None
        except (OSError, ValueError) as error:
            raise WeightsError(f"{name} of {self.source!r} cannot be read ({error}); download it again") from None
        if not isinstance(content, dict):
            raise WeightsError(f"{name} of {self.source!r} should contain a JSON object; download it again")
        return content

    def weight_files(self) -> tuple[Path, ...]:
        """The files of the weights, preferably safetensors; empty if they are incomplete."""
        for name in self.form.weights:
            if (self.folder / name).is_file():
                return (self.folder / name,)
            if (self.folder / f"{name}.index.json").is_file():
                shards = sorted(set(self.read_json(f"{name}.index.json").get("weight_map", {}).values()))
                paths = tuple(self.folder / Path(shard).name for shard in shards)
                return paths if all(path.is_file() for path in paths) else ()
        return ()

    def files(self) -> list[Path]:
        """The weights, graphs, tuned parts, adapters and small files; nothing else next to a single weight file."""
        kinds = (*SMALL_FILES, ".onnx", ".safetensors") if self.form.config.endswith(".json") else ()
        others = {path for path in self.folder.iterdir() if path.suffix in kinds and path.is_file()}
        return sorted(others.union(self.weight_files()))

    def missing(self, needs: Needs = ()) -> list[str]:
        """The files that it lacks: its configuration, its weights, and those that it `needs`."""
        groups = [(self.form.config,), *needs]
        gaps = [" or ".join(names) for names in groups if not any((self.folder / name).is_file() for name in names)]
        return gaps if self.weight_files() else [*gaps, f"complete {' or '.join(self.form.weights)}"]

    def marked(self, needs: Needs = ()) -> "Checkpoint":
        """Return the checkpoint of a folder with a hash of its content.

        Raises:
            WeightsError: files are missing.
        """
        if missing := self.missing(needs):
            raise WeightsError(f"{self.source!r} has no {missing[0]}; expected a complete checkpoint folder")
        return replace(self, mark=content_mark(path for path in self.files() if path.name not in _UNSIGNED))

    def model_type(self) -> str:
        """The `model_type` in its config.json, or `open_clip` for a configuration of that library.

        Raises:
            WeightsError: there is no configuration, or it has no `model_type`.
        """
        has_config, other = ((self.folder / name).is_file() for name in (CONFIG, OPEN_CLIP.config))
        kind = None if other and not has_config else self.read_json(CONFIG).get("model_type")
        if isinstance(kind, str):
            return kind
        if other:
            return "open_clip"
        raise WeightsError(f"{CONFIG} of {self.source!r} has no model_type; expected one such as 'clip'")


def local_checkpoint(source: str, *forms: Format) -> Checkpoint | None:
    """Return the checkpoint of a folder, in the first of the formats found there; None if it is not a folder."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return None
    kinds = forms or (TRANSFORMERS,)
    return Checkpoint(source, folder, "", next((form for form in kinds if (folder / form.config).is_file()), kinds[0]))


def looks_like_hub_name(name: str) -> bool:
    """Whether a name has the form `organisation/model`.

    >>> looks_like_hub_name("openai/clip-vit-base-patch32"), looks_like_hub_name("./models/mine")
    (True, False)
    """
    return _HUB_NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def locate(source: str, *, base: Path | None = None) -> str:
    """Resolve a source to a path or hub name: `package:NAME/path`, or a folder or file next to `base`.

    Raises:
        WeightsError: the package is not installed or lacks the file.
    """
    if source.startswith(_PACKAGE):
        name, _, inner = source.removeprefix(_PACKAGE).partition("/")
        folders = _package_folders(name)
        if not folders:
            package = name.replace("_", "-")
            raise WeightsError(f"the weights {package!r} are not installed; install them with: {install_line(package)}")
        for folder in folders:
            if (folder / inner).exists():
                return str(folder / inner)
        raise WeightsError(f"the weight package {name!r} has no {inner!r}; install another version of it")
    if base is not None and source and (base / source).exists():
        return str(base / source)
    return source


def _package_folders(module: str) -> tuple[Path, ...]:
    """The folders of a package, found without importing it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return tuple(map(Path, (spec.submodule_search_locations or []) if spec else []))


@contextmanager
def loading(*, verify: bool = False) -> Iterator[None]:
    """Context of one load of an encoder: each file is hashed once, and in full if `verify` is set.

    A nested load belongs to the outer one.
    """
    outer = _current.get()
    token = _current.set((verify, {}) if outer is None else outer)
    try:
        yield
    finally:
        _current.reset(token)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file: listed, recorded or computed, as the module's description says.

    Records of large files are in `$MSDSCORE_HOME/hashes`, or `~/.cache/msdscore/hashes`.
    """
    verify, hashes = _current.get() or (False, {})
    resolved = str(path.resolve())
    if resolved not in hashes:
        hashes[resolved] = _hashed(path, verify=verify)
    return hashes[resolved]


def _hashed(path: Path, *, verify: bool) -> str:
    status = path.stat()
    if not verify and (listed := _listed(path, status.st_size)):
        return listed
    if status.st_size <= WHOLE_UP_TO:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    resolved, times = str(path.resolve()), (status.st_mtime_ns, status.st_ctime_ns)
    state = [resolved, status.st_size, *times, status.st_ino, BLOCK]
    home = os.environ.get("MSDSCORE_HOME")
    base = Path(home).expanduser() if home else Path.home() / ".cache" / "msdscore"
    record = base / "hashes" / f"{sha256(resolved.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"
    if not verify:
        with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
            recorded = json.loads(record.read_bytes())
            if recorded["state"] == state and _sample_agrees(path, recorded["blocks"]):
                return str(recorded["sha256"])
    whole, blocks = sha256(), []
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            whole.update(block)
            blocks.append(_block_hash(block))
    if time.time() - max(times) / 1e9 > _SETTLED_SECONDS:
        from msdscore.io.files import write_bytes

        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            entry = {"state": state, "sha256": whole.hexdigest(), "blocks": blocks}
            write_bytes(record, json.dumps(entry).encode(), folder=record.parent)
    return whole.hexdigest()


def _listed(path: Path, size: int) -> str:
    """The SHA-256 in both lists of the file's folder if its size and CRC-32 agree with them; otherwise empty."""
    check, listed_size, digest = _checks(path.parent).get(path.name, ("", "", ""))
    if listed_size != str(size) or digest != listed_files(path.parent).get(path.name) or _crc32(path) != check:
        return ""  # the SHA-256 decides: a stale list costs time, and nothing else
    return digest


def _checks(folder: Path) -> dict[str, tuple[str, str, str]]:
    """CRC-32, size and SHA-256 of every file in `CHECKS`, by its name; empty without a list."""
    listed = folder / CHECKS
    rows = [line.split("  ") for line in listed.read_text(encoding="utf-8").splitlines()] if listed.is_file() else []
    return {row[3]: (row[0], row[1], row[2]) for row in rows if len(row) == 4}


def _crc32(path: Path) -> str:
    buffer, value = bytearray(_CHUNK), 0
    with path.open("rb", buffering=0) as file, memoryview(buffer) as view:
        while count := file.readinto(buffer):
            value = crc32(view[:count], value)
    return f"{value:08x}"


def _sample_agrees(path: Path, blocks: Sequence[str]) -> bool:
    # Other blocks at every load: a later load finds what an earlier one missed. No score depends on the draw.
    numbers = random.SystemRandom().sample(range(len(blocks)), min(SAMPLED, len(blocks)))
    with path.open("rb") as file:
        for number in sorted(numbers):
            file.seek(number * BLOCK)
            if _block_hash(file.read(BLOCK)) != blocks[number]:
                return False
    return True


def _block_hash(block: bytes) -> str:
    return blake2b(block, digest_size=8).hexdigest()


def content_mark(files: Iterable[Path]) -> str:
    """Eight hexadecimal digits for the names and all bytes of files, in any order."""
    paths = sorted(files, key=lambda path: path.name)
    with ThreadPoolExecutor(threads.count()) as pool:  # a copy of the context tells a thread about the current load
        pending = [pool.submit(copy_context().run, file_sha256, path) for path in paths]
    hashes = [future.result() for future in pending]
    lines = (f"{path.name}:{digest}\n" for path, digest in zip(paths, hashes, strict=True))
    return sha256("".join(lines).encode()).hexdigest()[:8]


def listed_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that the list of a folder names; empty without a list."""
    listed = folder / SUMS
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    return {Path(name).name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def verify_sums(folder: Path, *, only: Sequence[str] = ()) -> None:
    """Raise if the files of a folder, or `only` these, differ from its list; a folder without a list is not checked.

    Raises:
        WeightsError: a listed file is missing or differs.
    """
    for name, expected in listed_files(folder).items():
        path = folder / name
        if only and name not in only:
            continue
        if not path.is_file() or file_sha256(path) != expected:
            state = "is damaged" if path.is_file() else "is missing"
            raise WeightsError(f"{path}: {state} ({SUMS} lists {expected[:12]}…); install or export it again")


def write_sums(folder: Path, suffixes: Collection[str] = ()) -> None:
    """Write `SUMS`, for `sha256sum --check SHA256SUMS`, and `CHECKS` of a folder's files, or of those with suffixes."""
    from msdscore.io.files import write_bytes

    (folder / CHECKS).unlink(missing_ok=True)  # hashes are computed, not read from an older list
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    digests = {path: file_sha256(path) for path in files if not suffixes or path.suffix in suffixes}
    sums = "".join(f"{digest}  {path.name}\n" for path, digest in digests.items())
    checks = "".join(
        f"{_crc32(path)}  {path.stat().st_size}  {digest}  {path.name}\n" for path, digest in digests.items()
    )
    write_bytes(folder / SUMS, sums.encode("utf-8"), folder=folder)
    write_bytes(folder / CHECKS, checks.encode("utf-8"), folder=folder)
