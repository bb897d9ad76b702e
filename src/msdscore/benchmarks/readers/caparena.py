"""CapArena: people's choices between detailed captions of two systems; CapArena-Auto's fixed opponents."""

from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Battle, ItemSet, Note, Winner
from msdscore.benchmarks.readers.files import field, find, folder, read_json
from msdscore.errors import InputError

GET = "https://github.com/njucckevin/CapArena (section 'Reproduce the results from the paper')"
GET_AUTO = "https://github.com/njucckevin/CapArena (section 'CapArena-Auto')"

# The order of the paper's human ranking, best first; its scripts compare every metric with this list.
HUMAN_ORDER = (
    "GPT-4o-0806",
    "human",
    "Gemini-2.0-flash-exp",
    "InternVL2-26B",
    "Gemini-1.5-pro-002",
    "Claude-3.5-Sonnet-0620",
    "GPT-4o-mini-0718",
    "LLama-3.2-90B",
    "Qwen2-VL-72B-Instruct",
    "CogVLM2-llama3-chat-19B",
    "MiniCPM-V2.6-8B",
    "Qwen2-VL-7B-Instruct",
    "Qwen2-VL-2B-Instruct",
    "LLaVA-1.6-34B",
    "LLaVA-1.5-7B",
)
TIES = ("equal", "skip", "bad")


def read(root: Path, *, file: str = "caparena_annots_eval.json") -> ItemSet[Battle]:
    """All battles of the annotation file, those against the human writer too: the protocol leaves them out.

    The labels equal, skip and bad all mean a tie, which is how the paper's figures come about.
    """
    path = find(root, file, f"eval/{file}", f"data/eval/{file}", get=GET)
    images = folder(root, "images", "data/eval/images", "eval/images", "page_all_images", "all_images")
    return ItemSet(tuple(_battle(path, i, row, images) for i, row in enumerate(read_json(path, list))))


def read_auto(root: Path, *, captions: Path | None = None, system: str | None = None) -> ItemSet[Battle]:
    """CapArena-Auto: the captions of one system (`{"test_01258.jpg": "…"}`) against its 600 fixed opponents.

    Images whose opponent is the system itself are left out, as in the official scorer.
    """
    path = find(root, "caparena_auto_600.json", "data/caparena_auto/caparena_auto_600.json", get=GET_AUTO)
    answers_path = captions or find(root, "result.json", "*result*.json", get="your captioner")
    name = system or answers_path.stem
    images = folder(root, "images", "all_images", "data/caparena_auto/images")
    rows, answers = read_json(path), read_json(answers_path)
    _check_answers(answers_path, rows, answers)
    battles = [
        _auto_battle(image, row, answers[image], name, images)
        for image, row in rows.items()
        if row["ref_model"] != name
    ]
    own = len(rows) - len(battles)
    return ItemSet(tuple(battles), (Note("pictures left out: the opponent is the system itself", own),) if own else ())


def _battle(path: Path, number: int, row: dict[str, Any], images: Path) -> Battle:
    where = f"{path} row {number}"
    first, second = field(row, "source1", where=where), field(row, "source2", where=where)
    verdict = field(row, "winner", where=where)
    return Battle(
        id=f"{number}:{field(row, 'img', where=where)}",
        image=images / row["img"],
        caption_a=field(row, "caption1", where=where),
        caption_b=field(row, "caption2", where=where),
        winner=_winner(verdict, first, second, where),
        system_a=first,
        system_b=second,
        level=str(row.get("cluster", "")),
        subset="in-400" if row.get("in-400") else "",
        verdict=verdict,
        references=(row["ref"],) if row.get("ref") else (),
    )


def _winner(verdict: str, first: str, second: str, where: str) -> Winner:
    if verdict in (first, second):
        return "a" if verdict == first else "b"
    if verdict in TIES:
        return "tie"
    known = ", ".join((first, second, *TIES))
    raise InputError(f"{where}: expected winner to be one of {known}, got {verdict!r}")


def _auto_battle(image: str, row: dict[str, Any], answer: str, name: str, images: Path) -> Battle:
    opponent = row["ref_model"]
    return Battle(
        id=image,
        image=images / image,
        caption_a=answer,
        caption_b=row["captions"][opponent],
        winner=None,
        system_a=name,
        system_b=opponent,
        level=opponent,
        references=(row["captions"]["human"],) if row["captions"].get("human") else (),
    )


def _check_answers(path: Path, rows: dict[str, Any], answers: dict[str, str]) -> None:
    lacking = [image for image in rows if image not in answers]
    if lacking:
        raise InputError(
            f"{path} lacks captions for {len(lacking)} of {len(rows)} images, the first {lacking[0]}; "
            "expected one caption per image"
        )
