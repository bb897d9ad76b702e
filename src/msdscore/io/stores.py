"""Access to local and remote files: paths, addresses such as s3://bucket/key, and shard patterns."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape, glob
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from io import SEEK_END
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from urllib.parse import quote
from uuid import uuid4

from msdscore.errors import (
    ConfigError,
    InputError,
    MissingExtraError,
    MSDScoreError,
    RunError,
    one_line,
    require,
    shortened,
)
from msdscore.io.files import TEMPORARY, base_name, is_address, replacing, split_query, stem

FileSystem: TypeAlias = Any  # an fsspec file system; fsspec has no types
_WEB = ("http://", "https://")
_BLOCK = 1 << 16
_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "created")  # as stores call them
_COMPARED = 1 << 20  # bytes of two files that are compared at once
_BLOCKS = 4  # of a file, hashed for its mark
# Object stores write objects atomically; elsewhere a rename is needed.
_ATOMIC_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"})
STALLED = 60.0  # seconds without data after which a download from a web server is given up
_BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000  # limit for one pattern
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def open_store(name: str) -> tuple[FileSystem, str]:
    """Open the file system of an address; return it with the path inside.

    fsspec opens it; if the library for a scheme is not installed, the file systems of pyarrow are tried.
    """
    fsspec, options = require("fsspec", extra="ray"), {}
    if name.lower().startswith(_WEB) and find_spec("aiohttp") is not None:
        # A download may take any time, also more than the five minutes that are the default, as long as data arrives.
        aiohttp: Any = import_module("aiohttp")
        options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=STALLED)}}
    try:
        fs, path = fsspec.core.url_to_fs(name, **options)
    except ImportError as missing:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import FileSystem as ArrowFileSystem

        try:
            # pyarrow raises for characters such as [ in a path, and decodes %5B.
            base, query = split_query(name)
            arrow, path = ArrowFileSystem.from_uri(quote(base, safe=":/@%") + query)
        except (ValueError, OSError) as error:
            scheme = name.partition("://")[0]
            raise MissingExtraError(f"{scheme}:// cannot be opened here ({missing}; pyarrow: {error})") from error
        return ArrowFSWrapper(arrow), path
    except ValueError as error:
        raise InputError(
            f"{shortened(name)}: unknown kind of store ({error}); expected one that fsspec supports"
        ) from error
    return fs, str(path)


def join(folder: str, name: str) -> str:
    """Return the name of a file in a folder or under an address.

    >>> join("s3://bucket/scores", "a.parquet"), join("scores/", "a.parquet")
    ('s3://bucket/scores/a.parquet', 'scores/a.parquet')
    """
    base, query = split_query(folder)
    return f"{base.rstrip('/')}/{name}{query}" if is_address(folder) else str(Path(folder) / name)


def exists(name: str) -> bool:
    """Whether the file exists."""
    with _as_input_error(name):
        if not is_address(name):
            return Path(name).is_file()
        fs, path = open_store(name)
        try:
            return bool(fs.info(path)["type"] == "file")
        except FileNotFoundError as error:
            # Some stores answer 403 for a missing file.
            if (failure := _web_failure(name, error)) is not None and getattr(failure, "status", 0) != 403:
                raise
            return False


def matching(pattern: str) -> list[str]:
    """Return the local or remote files that match a pattern such as `shards/*.tar`, sorted by name."""
    if not is_address(pattern):
        return sorted(glob(pattern, recursive=True))  # noqa: PTH207, several folders may have stars, and be absolute
    with _as_input_error(pattern):
        fs, path = open_store(pattern)
        _, query = split_query(pattern)  # missing from the paths that a store returns
        files = sorted(fs.glob(path))
        if not files:  # fsspec also returns this for an unreachable store; listing the folder raises then
            with suppress(FileNotFoundError):
                fs.ls(path.rpartition("/")[0])
        return [fs.unstrip_protocol(file) + query for file in files]


def in_folder(folder: str, pattern: str) -> list[str]:
    """Return the files directly in a folder, or under an address, that match a pattern, without hidden ones."""
    files = matching(join(folder if is_address(folder) else escape(folder), pattern))
    return [file for file in files if not base_name(file).startswith(".")]


def parent(name: str) -> str:
    """Return the folder or address of a file.

    >>> parent("s3://bucket/scores/a.parquet"), parent("scores/a.parquet"), parent("a.parquet")
    ('s3://bucket/scores', 'scores', '.')
    """
    base, query = split_query(name)
    return base.rpartition("/")[0] + query if is_address(name) else str(Path(name).parent)


def mark(name: str) -> str:
    """Return a mark of a file, `CONTENT@TIME`: a hash of its size and four blocks, and its modification time.

    A store may have an ETag instead of the time. Of a web server that only sends whole files, only the first block is
    read.
    """
    with _as_input_error(name):
        info: Mapping[str, Any] = {}
        if is_address(name):
            fs, path = open_store(name)
            info = fs.info(path)
        versions = (info.get(key) for key in _VERSIONS)
        version = next((str(value).strip('"').replace(" ", "T") for value in versions if value), "-")
        try:
            with reading(name) as file:
                size, digest = file.seek(0, SEEK_END), blake2b(digest_size=16)
                digest.update(b"%d\n" % size)
                for number in range(_BLOCKS):
                    file.seek(max(size - _BLOCK, 0) * number // (_BLOCKS - 1))
                    digest.update(file.read(_BLOCK))
        except ValueError as error:
            if "range requests" not in str(error):
                raise
            with fs.open(path, "rb", block_size=0) as stream:  # read from the beginning, as it arrives
                digest = blake2b(b"%d\n" % (info.get("size") or 0), digest_size=16)
                digest.update(stream.read(_BLOCK))
                while version == "-" and (block := stream.read(_COMPARED)):
                    digest.update(block)
        if not is_address(name):
            version = str(Path(name).stat().st_mtime_ns)
        return f"{digest.hexdigest()}@{version}"


@contextmanager
def reading(name: str) -> Iterator[Any]:
    """Open a file for random access to its bytes; of a remote file only the blocks that are read are fetched."""
    if not is_address(name):
        with Path(name).open("rb") as file:
            yield file
        return
    fs, path = open_store(name)
    with fs.open(path, "rb", block_size=_BLOCK) as file:
        yield file


def content(name: str) -> bytes | None:
    """Return the bytes of a small file; None if it does not exist."""
    if not exists(name):
        return None
    with reading(name) as file:
        return bytes(file.read())


@contextmanager
def fetched(name: str) -> Iterator[Path]:
    """Provide a local path to a file; a download is removed at the end of the block."""
    if not is_address(name):
        yield Path(name)
        return
    with TemporaryDirectory(prefix="msdscore-") as folder:
        path = Path(folder) / base_name(name)
        with _as_input_error(name):
            fs, target = open_store(name)
            fs.get_file(target, str(path))
        yield path


def metadata_table(shard: str) -> str | None:
    """Return the name of the Parquet table next to a tar, which may have metadata of its samples."""
    base, query = split_query(shard)
    table = f"{base.removesuffix(base[-4:])}.parquet{query}" if base.lower().endswith(".tar") else None
    return table if table is not None and exists(table) else None


@contextmanager
def fetched_shard(name: str) -> Iterator[Path]:
    """Provide a local path to a shard, as `fetched`; a remote tar comes with its metadata table."""
    with fetched(name) as path, ExitStack() as stack:
        if path != Path(name) and (table := metadata_table(name)):
            stack.enter_context(fetched(table)).replace(path.with_suffix(".parquet"))
        yield path


@contextmanager
def writing(name: str, *, keep: bool = False, same: bool = False) -> Iterator[Any]:
    """Open a file that atomically becomes `name` at the end of the block.

    With `keep` an existing file stays, with `same` also, and one with other content is a `RunError`.
    """
    if not is_address(name):
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(Path(name), keep=keep or same) as file:
                yield file
                if same:
                    file.flush()
                    _check_same(Path(file.name), name)
        except OSError as error:
            what = f"cannot be written ({error.strerror or one_line(error)}); choose another -o"
            raise RunError(f"{shortened(name)}: {what}") from error
        return
    with TemporaryDirectory(prefix="msdscore-") as folder:
        path = Path(folder) / "content"
        with path.open("wb") as file:
            yield file
        if same:
            _check_same(path, name)
        if (keep or same) and exists(name):
            return
        try:
            fs, target = open_store(name)
            parent = target.rpartition("/")[0]
            if _ATOMIC_STORES & ({fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)):
                fs.put_file(str(path), target)
                return
            fs.makedirs(parent, exist_ok=True)
            temporary = f"{parent}/.{uuid4().hex}{TEMPORARY}"
            fs.put_file(str(path), temporary)
            fs.mv(temporary, target)
        except Exception as error:  # stores raise the errors of their libraries
            raise RunError(f"{shortened(name)}: cannot be written ({one_line(error)}); choose another -o") from error


def _check_same(path: Path, name: str) -> None:
    """Raise if a file exists with other content than the one at `path`."""
    if not exists(name):
        return
    with path.open("rb") as new, reading(name) as old:
        blocks = iter(lambda: (new.read(_COMPARED), old.read(_COMPARED)), (b"", b""))
        if any(first != second for first, second in blocks):
            raise RunError(f"{shortened(name)}: exists with other content; choose another -o or pass --overwrite")


def remove(name: str) -> None:
    """Remove a file if it exists."""
    if not is_address(name):
        Path(name).unlink(missing_ok=True)
    elif exists(name):
        fs, path = open_store(name)
        fs.rm_file(path)


@contextmanager
def _as_input_error(name: str) -> Iterator[None]:
    """Convert the errors of any store to an `InputError`."""
    try:
        yield
    except MSDScoreError:
        raise
    except FileNotFoundError as error:
        failure = _web_failure(name, error)
        reason = "no such file" if failure is None else f"cannot be read ({one_line(failure)})"
        raise InputError(f"{shortened(name)}: {reason}") from error
    except Exception as error:  # stores raise the errors of their libraries
        raise InputError(f"{shortened(name)}: cannot be read ({one_line(error)})") from error


def _web_failure(name: str, error: FileNotFoundError) -> BaseException | None:
    """Return why a file of a web server was not found, if it may exist: fsspec raises one error for all failures."""
    is_web = name.lower().startswith(_WEB)
    return error.__cause__ if is_web and getattr(error.__cause__, "status", 0) not in (404, 410) else None


def expand(pattern: str) -> list[str]:
    """Expand a pattern to shards; braces may name missing shards, other patterns match existing files.

    >>> expand("part-{a,b}/{08..10}.tar")[:4]
    ['part-a/08.tar', 'part-a/09.tar', 'part-a/10.tar', 'part-b/08.tar']
    """
    if not is_address(pattern) and Path(pattern).is_dir():
        # Parquet files next to tars are their metadata.
        return next(filter(None, (matching(str(Path(escape(pattern)) / end)) for end in ("*.tar", "*.parquet"))), [])
    if not is_address(pattern) and Path(pattern).is_file():  # whatever characters are in its name
        return [pattern]
    choices: list[Sequence[str | int]] = []
    widths: list[int] = []
    for number, text in enumerate(_BRACES.split(pattern)):  # every second part was in braces
        bounds = _RANGE.fullmatch(text) if number % 2 else None
        if bounds and int(bounds[2]) < int(bounds[1]):
            raise ConfigError(f"{{{text}}}: expected a range from a smaller to a larger number, as in {{00000..01231}}")
        widths.append(len(bounds[1]) if bounds else 0)
        numbers = range(int(bounds[1]), int(bounds[2]) + 1) if bounds else None
        choices.append(numbers or (text.split(",") if number % 2 else [text]))
    count = prod(map(len, choices))
    if count > MAX_SHARDS:
        raise ConfigError(f"{shortened(pattern)}: {count:,} names; expected at most {MAX_SHARDS:,} shards in one run")
    shards: list[str] = []
    for parts in product(*choices):
        name = "".join(str(part).zfill(width) for part, width in zip(parts, widths, strict=True))
        is_glob = any(sign in split_query(name)[0] for sign in "*?[")
        shards += matching(name) or ([name] if exists(name) else []) if is_glob else [name]
    return shards


def expand_all(patterns: Iterable[str]) -> list[str]:
    """Expand several patterns to shards, each once.

    Raises:
        InputError: a pattern matches nothing.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        shards = expand(pattern)
        if not shards:
            raise InputError(
                f"{shortened(pattern)}: no shards found; expected tars or Parquet files, or a pattern of them"
            )
        names.update(dict.fromkeys(shards))
    return list(names)


def score_names(shards: Sequence[str]) -> list[str]:
    """Return the score file name of every shard: its name with the suffix .parquet.

    >>> score_names(["s3://bucket/00000.tar", "rows.jsonl.gz"])
    ['00000.parquet', 'rows.parquet']
    """
    shard_of: dict[str, str] = {}
    for shard in shards:
        name = f"{stem(shard)}.parquet"
        if (other := shard_of.setdefault(name, shard)) != shard:
            raise ConfigError(
                f"{shortened(other)} and {shortened(shard)} would both become {name}; score them into two folders"
            )
    return list(shard_of)
