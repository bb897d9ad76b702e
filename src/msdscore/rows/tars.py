"""Tar shards as records: WebDataset samples, the img2dataset layout, and DataComp metadata tables.

Files that share a name before the first dot are one sample.
"""

import os
import re
import tarfile
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from struct import Struct
from typing import Any, BinaryIO
from zlib import adler32

from msdscore.errors import InputError, shortened
from msdscore.io.arrow import pa, pq
from msdscore.io.files import IMAGE_ENDINGS, TarImage, file_state
from msdscore.io.stores import mark
from msdscore.rows.formats import Record, Records, json_record, valid_text
from msdscore.rows.rules import CAPTION_NAMES, first_of

TEXT_ENDINGS = ("txt", "caption", "text")
CAPTION_LISTS = ("captions", "texts", "sentences")
SHARED_KEY = "is that of several samples"  # part of the warning about such a key
DOWNLOADED = "success"  # img2dataset's status of a downloaded image
_AMBIGUOUS = {"status": "ambiguous", "error_message": "the metadata table has different rows with this key"}
_METADATA = ("key", "uid", "caption", "text", "status", "error_message")  # columns read from the metadata table
_LARGEST_TEXT = 1 << 20  # bytes of a text file in a shard
_END = 2 * tarfile.BLOCKSIZE  # minimum zero bytes at the end of a complete tar
_BLOCK = 1 << 16
_OCTAL = b"01234567"
_HEADER = Struct("100s24x12s12x8sc100x5s83xB")  # name, size, checksum, type, magic, first byte of the prefix
_WINDOW = 1 << 13  # bytes read at once
_TIMES = re.compile(rb"(?:\d+ [acm]time=[-0-9.]+\n)+")  # extended headers with nothing but times are skipped
_TRUNCATED = "the tar is truncated; the samples after that are lost, download it again"


@dataclass(slots=True)
class TarSample:
    """The files of one key: the image, and the texts with their suffixes, in order.

    `error` is set if one of them cannot be read; a sample without a key reports the lost rest of a tar.
    """

    key: str
    image: TarImage | None = None
    texts: list[tuple[str, str]] = field(default_factory=list)
    error: str | None = None
    warnings: list[str] = field(default_factory=list)


class TarSamples(Records):
    """One record per caption of every sample: its JSON values, `key`, `image` and `caption`.

    A Parquet table of the same name next to the tar adds `uid`, `text` and `status` to samples of the same `key` (or,
    in tables without keys, the same `uid`). A sample that was not downloaded, or a truncated tar, has an error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.files = (path, path.with_suffix(".parquet"))

    def fingerprint(self) -> str:
        """Return a fingerprint of the tar and its metadata table."""
        return "+".join(mark(str(path)) for path in self.files if path.is_file())

    def read(self) -> Iterator[Record]:
        """Iterate over one record per caption, and one more for a truncated tar."""
        seen, metadata = set[int](), self._metadata
        for sample in read_samples(self.path, (*TEXT_ENDINGS, "json")):
            if (key := hash(sample.key)) in seen:  # a hash takes a third of the memory of a key
                sample.warnings.append(f"the key {shortened(valid_text(sample.key))} {SHARED_KEY}")
            seen.add(key)
            yield from _sample_records(sample, metadata)

    @cached_property
    def _metadata(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows of the metadata table by `key`, else by `uid`; empty if there is no such table."""
        path = self.files[1]
        if not path.is_file():
            return {}
        try:
            schema = pq.read_schema(path)
            names = [name for name in _METADATA if name in schema.names]
            key_name = first_of(names, ("key", "uid"))
            # Score files next to their tars have keys too, but are not metadata.
            if key_name is None or b"msdscore" in (schema.metadata or {}):
                return {}
            rows = pq.read_table(path, columns=names).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be read as metadata of its tar ({error}); repair or delete it") from error
        metadata: dict[str, dict[str, Any]] = {}
        for row in rows:
            values = {name: value for name, value in row.items() if value is not None}
            if metadata.setdefault(str(row[key_name]), values) != values:
                metadata[str(row[key_name])] = _AMBIGUOUS
        return metadata


def _sample_records(sample: TarSample, metadata: Mapping[str, Mapping[str, Any]]) -> Iterator[Record]:
    if not sample.key:
        yield Record(error=sample.error)
        return
    values, error = _json_values(sample)
    if metadata:
        keys = (sample.key, Path(sample.key).name, str(values.get("uid")))
        row = next((metadata[key] for key in keys if metadata.get(key)), {})
        values = {**row, **values}
    values["key"] = valid_text(sample.key)
    warning = "; ".join(sample.warnings) or None
    texts = [text.strip() for ending, text in sample.texts if ending in TEXT_ENDINGS]
    if texts:
        values["caption"] = valid_text(texts[0])
    if sample.image is not None:
        values["image"] = sample.image
    status = values.get("status", DOWNLOADED)
    if error is None and status != DOWNLOADED:
        error = f"{sample.key}: status {shortened(str(status))} ({values.get('error_message') or 'no error message'})"
    captions = next((values.get(name) for name in CAPTION_LISTS if isinstance(values.get(name), list)), None)
    if not captions or first_of(values, CAPTION_NAMES) is not None:
        yield Record(values, error, warning)
        return
    sample_id = values.get("id", values["key"])
    for number, caption in enumerate(captions):
        text = caption.get("raw") if isinstance(caption, dict) else caption
        yield Record({**values, "id": f"{sample_id}#{number}", "caption": text}, error, warning)


def _json_values(sample: TarSample) -> tuple[dict[str, Any], str | None]:
    """Return the values of the sample's JSON file, or an error if it cannot be read."""
    text = next((text for ending, text in sample.texts if ending == "json"), None)
    if text is None:
        return {}, sample.error
    record = json_record(text, f"{sample.key}.json")
    return record.values, record.error or sample.error


def read_samples(path: Path, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    """Iterate over the samples of a shard; texts with one of the endings are read, images are not.

    A truncated or damaged shard yields the samples before the damage, and one without a key that reports it.
    """
    has_samples, lost = False, None
    try:
        with path.open("rb") as file:
            walk = TarWalk(file)
            for sample in _samples(path, walk, text_endings):
                has_samples = True
                yield sample
            # tarfile stops at an unreadable header as it does at the end of the tar; after a real end only empty
            # blocks follow.
            rest = os.fstat(file.fileno()).st_size - walk.position
            file.seek(walk.position)
            while rest >= tarfile.BLOCKSIZE and lost is None and (block := file.read(_BLOCK)):
                if block.count(0) < len(block):
                    damage = f"damaged at byte {walk.position}, or several tars in one"
                    lost = f"{damage}; the samples after that are lost, download it again"
            lost = lost or (None if rest >= _END else _TRUNCATED)
    except tarfile.TarError as error:
        if not has_samples:
            raise InputError(f"{path}: not an uncompressed tar shard ({error})") from error
        lost = _TRUNCATED
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if lost is not None:
        yield TarSample("", error=f"{path.name}: {lost}")


def sample_key(name: str) -> str:
    """Return the key of a file in a tar: its name up to the first dot, with its folder.

    >>> sample_key("000000012.jpg"), sample_key("a/b.c.json")
    ('000000012', 'a/b')
    """
    return _key_and_name(name)[0]


def _key_and_name(name: str) -> tuple[str, str]:
    """Split a name in a tar into its sample key and its base name."""
    if "/" not in name and name[:1] not in ("", "."):
        return name.partition(".")[0], name
    folder, slash, base = name.rpartition("/")
    if not base or name[0] in "./" or "//" in name or "/." in name:
        path = PurePosixPath(name)
        return str(path.parent / path.name.partition(".")[0]), path.name
    return folder + slash + base.partition(".")[0], base


def plain_header(block: bytes, offset: int = 0) -> tuple[bytes, str, int] | None:
    """Parse type, name and size of a plain ustar header in `block`; None for any other header."""
    if len(block) - offset < tarfile.BLOCKSIZE:
        return None
    name, size, total, kind, magic, prefix = _HEADER.unpack_from(block, offset)
    name, _, rest = name.partition(b"\0")
    size, digits = size.rstrip(b"\0 "), total.strip(b"\0 ")
    if prefix or magic != b"ustar" or not name.isascii() or rest.strip(b"\0"):
        return None
    if not size or not digits or (size + digits).strip(_OCTAL):
        return None
    # The checksum is the sum of all bytes with its field as spaces; adler32's low half is 1 + the sum, mod 65521.
    header, others = block[offset : offset + tarfile.BLOCKSIZE], int(digits, 8) - 8 * ord(" ") + sum(total)
    if (adler32(header) - others - 1) & 0xFFFF and sum(header) != others:
        return None
    return kind, name.decode("ascii"), int(size, 8)


class TarWalk:
    """Iterator over the files of a tar; `position` is the offset of the next header.

    Headers of ordinary files and folders are parsed here, faster than by tarfile, which takes over at the first unusual
    header, at the latest at the empty blocks at the end.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.position = file, 0
        self._window, self._start = b"", 0  # the bytes read last, and their offset
        self._rest: tarfile.TarFile | None = None
        self._sparse: tarfile.TarInfo | None = None

    def files(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over name, content offset and size of each file."""
        while (header := self._header()) is not None:
            kind, name, size = header
            if kind == tarfile.DIRTYPE:
                self.position += tarfile.BLOCKSIZE
                continue
            if kind == tarfile.XHDTYPE:  # written by WebDataset before every file
                times = self._read(self.position + tarfile.BLOCKSIZE, 3 * tarfile.BLOCKSIZE) if size <= 512 else b""
                following = plain_header(times, tarfile.BLOCKSIZE)
                if following is None or following[0] != tarfile.REGTYPE or not _TIMES.fullmatch(times[:size]):
                    break
                _, name, size = following
                self.position += 2 * tarfile.BLOCKSIZE
            elif kind != tarfile.REGTYPE:
                break
            start = self.position + tarfile.BLOCKSIZE
            self.position = start + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            yield name, start, size
        self.file.seek(self.position)
        with tarfile.open(fileobj=self.file, mode="r:") as self._rest:
            for member in self._rest:
                if member.isfile():
                    self._sparse = member if member.issparse() else None
                    yield member.name, member.offset_data, member.size
            self.position = self._rest.offset

    def content(self, start: int, size: int) -> bytes:
        """Read the content of the file that was yielded last."""
        if self._sparse is not None and self._rest is not None:
            file = self._rest.extractfile(self._sparse)
            return b"" if file is None else file.read()
        content = self._read(start, size)
        if len(content) < size:
            raise tarfile.ReadError("unexpected end of data")
        return content

    def _header(self) -> tuple[bytes, str, int] | None:
        # The byte before a header is read too: if it is missing, the content before the header is truncated.
        before = 1 if self.position else 0
        offset = self.position - before - self._start
        if not 0 <= offset <= len(self._window) - before - tarfile.BLOCKSIZE:
            self._fill(self.position - before)
            offset = 0
            if before and not self._window:
                raise tarfile.ReadError("unexpected end of data")
        return plain_header(self._window, offset + before)

    def _read(self, start: int, size: int) -> bytes:
        offset = start - self._start
        if not 0 <= offset <= len(self._window) - size:
            self._fill(start, size)
            offset = 0
        return self._window[offset : offset + size]

    def _fill(self, start: int, size: int = 0) -> None:
        """Read a window of bytes, which usually contains the texts of a sample and the next header."""
        self.file.seek(start)
        self._window, self._start = self.file.read(max(size, _WINDOW)), start


def _samples(path: Path, walk: TarWalk, text_endings: tuple[str, ...]) -> Iterator[TarSample]:
    sample, endings, state = TarSample(""), set[str](), file_state(walk.file.fileno())
    for name, start, size in walk.files():
        key, base = _key_and_name(name)
        if base.startswith("."):
            continue
        ending = base.partition(".")[2].lower()
        if key != sample.key or ending in endings:
            if sample.key:
                yield sample
            sample, endings = TarSample(key), set()
        endings.add(ending)
        if ending in IMAGE_ENDINGS:
            if sample.image is None:
                sample.image = TarImage(path, start, size, name, state)
            else:
                sample.warnings.append(f"the sample has several images, of which {sample.image.name} was scored")
        elif ending in text_endings and size <= _LARGEST_TEXT:
            content = walk.content(start, size).removeprefix(BOM_UTF8)
            try:
                text = content.decode()
            except UnicodeDecodeError:
                text = content.decode("utf-8", "replace")
                sample.error = sample.error or f"{sample.key}.{ending}: not valid UTF-8"
            sample.texts.append((ending, text))
    if sample.key:
        yield sample
