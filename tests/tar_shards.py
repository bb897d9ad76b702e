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


def sample(key: str, **contents: bytes) -> list[tuple[str, bytes]]:
    """Return the files of a sample for `tar_of`, by their endings."""
    return [(f"{key}.{ending}", content) for ending, content in contents.items()]


def tar_of(path: Path, *members: tuple[str, bytes]) -> Path:
    """Write a tar of these files; a name may occur twice."""
    with tarfile.open(path, "w") as shard:
        for name, content in members:
            add(shard, name, content)
    return path


def write_tar(path: Path, rows: int = 6, *, first: int = 0, described: bool = True, captioned: bool = True) -> Path:
    """Write a shard of `rows` samples, with JSON files if `described` and caption texts if `captioned`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    members = []
    for number in range(first, first + rows):
        key, caption = f"{number:09d}", f"a {COLOURS[number % 6]} square and a {COLOURS[number % 5]} circle"
        members += sample(key, jpg=jpeg(COLOURS[number % 6]))
        if described:
            facts = {"key": key, "caption": caption, "status": "success", "sha256": "ab" * 32, "uid": uid(number)}
            members += sample(key, json=json.dumps(facts).encode())
        if captioned:
            members += sample(key, txt=caption.encode())
    return tar_of(path, *members)


def uid(number: int) -> str:
    """Return a uid in the format of DataComp."""
    return f"{number:032x}"
