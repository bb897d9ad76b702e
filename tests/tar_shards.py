"""Small tar shards in the layout of img2dataset, complete or with missing members."""

import io
import json
import tarfile
from pathlib import Path

from PIL import Image

COLOURS = ("red", "green", "blue", "white", "black", "yellow")


def jpeg(colour: str, size: tuple[int, int] = (48, 32)) -> bytes:
    """Return a JPEG of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "JPEG")
    return stream.getvalue()


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to an open tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def write_tar(path: Path, rows: int = 6, *, first: int = 0, described: bool = True, captioned: bool = True) -> Path:
    """Write a shard of `rows` samples, with JSON files if `described` and caption texts if `captioned`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for number in range(first, first + rows):
            key, caption = f"{number:09d}", f"a {COLOURS[number % 6]} square and a {COLOURS[number % 5]} circle"
            add(shard, f"{key}.jpg", jpeg(COLOURS[number % 6]))
            if described:
                facts = {"key": key, "caption": caption, "status": "success", "sha256": "ab" * 32, "uid": uid(number)}
                add(shard, f"{key}.json", json.dumps(facts).encode())
            if captioned:
                add(shard, f"{key}.txt", caption.encode())
    return path


def uid(number: int) -> str:
    """Return a uid in the format of DataComp."""
    return f"{number:032x}"
