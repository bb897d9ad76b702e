"""Hashes of weight files.

Files up to `WHOLE_UP_TO` bytes are read in full at every load: if their folder lists their size and CRC-32 (`CHECKS`,
written by `write_sums`) and both agree, the SHA-256 is the listed one, which takes a fifth of the time of computing
it. A larger file without such a list is read in full once; its hash is reused while its size and timestamps are the
same and `SAMPLED` blocks, drawn anew at every load, match the recorded ones. Within `loading(verify=True)` the SHA-256
of every file is computed from all of its bytes.
"""

import json
import os
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from hashlib import blake2b, file_digest, sha1, sha256
from pathlib import Path
from zlib import crc32

from msdscore import threads
from msdscore.errors import WeightsError

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


def verify_cached(files: Iterable[Path]) -> None:
    """Raise if files of the Hugging Face cache differ from those on the hub.

    The cache names a file by the hash of its content: SHA-256 for large files, git's for small ones. If it contains
    copies instead of links, there is nothing to compare with.

    Raises:
        WeightsError: the content of a file differs.
    """
    for path in files:
        name = path.resolve().name
        if not path.is_symlink() or len(name) not in (40, 64):
            continue
        if len(name) == 64:
            digest = file_sha256(path)
        else:
            content = path.read_bytes()
            digest = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if digest != name:
            raise WeightsError(f"{path}: is damaged (its content differs from the hub's); delete and download it again")


def content_mark(files: Iterable[Path]) -> str:
    """Eight hexadecimal digits for the names and all bytes of files, in any order."""
    paths = sorted(files, key=lambda path: path.name)
    with ThreadPoolExecutor(threads.count()) as pool:  # a copy of the context tells a thread about the current load
        pending = [pool.submit(copy_context().run, file_sha256, path) for path in paths]
    hashes = [future.result() for future in pending]
    lines = (f"{path.name}:{digest}\n" for path, digest in zip(paths, hashes, strict=True))
    return sha256("".join(lines).encode()).hexdigest()[:8]


def files_sha256(files: Sequence[Path]) -> str:
    """The SHA-256 of one file; of several, the SHA-256 of their bytes in order; empty if there are none."""
    if len(files) == 1:
        return file_sha256(files[0])
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            file_digest(file, lambda: digest)
    return digest.hexdigest() if files else ""


def verify_files(files: Sequence[Path], expected: str, *, source: str) -> None:
    """Raise unless the weights have the expected hash; an empty `expected` accepts any.

    Raises:
        WeightsError: their SHA-256 differs.
    """
    if not expected:
        return
    digest = files_sha256(files)
    if digest != expected:
        raise WeightsError(
            f"weights of {source!r} should have SHA-256 {expected[:12]}…, got {digest[:12] or 'none'}…; "
            "use the backbone that the heads were trained on"
        )


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
