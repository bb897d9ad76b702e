"""Answers of judges kept on disk, one file each, so that no question is paid for twice."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from msdscore.io.atomic import write_bytes
from msdscore.metrics.vlm.model import Answer


def default_folder() -> Path:
    """`$MSDSCORE_HOME/judge`, or `~/.cache/msdscore/judge`."""
    home = os.environ.get("MSDSCORE_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "msdscore") / "judge"


def question_key(question: Mapping[str, str]) -> str:
    """A name for a question from everything that can change its answer.

    >>> question_key({"model": "m", "text": "t"}) == question_key({"text": "t", "model": "m"})
    True
    """
    content = json.dumps(dict(question), sort_keys=True, ensure_ascii=False)
    return blake2b(content.encode(), digest_size=16).hexdigest()


def recall(folder: Path, key: str) -> Answer | None:
    """The kept answer, or None where there is none that can be read."""
    try:
        content = json.loads(_place(folder, key).read_text(encoding="utf-8"))
        return Answer(str(content["text"]), int(content["tokens_in"]), int(content["tokens_out"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder: Path, key: str, answer: Answer) -> None:
    """Keep an answer in one step: it is there whole or not at all."""
    path = _place(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(asdict(answer), ensure_ascii=False).encode() + b"\n", folder=path.parent)


def _place(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.json"
