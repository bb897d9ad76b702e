"""Readers of benchmarks with human choices between captions of two systems: CapArena and DocENT."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from msdscore.errors import InputError
from msdscore.rows.images import StoredImages, read_columns
from msdscore_lab.benchmarks.base import Battle, ItemSet, Winner
from msdscore_lab.benchmarks.readers.files import find, find_all, folder, missing_error, numbered, read_json, records
from msdscore_lab.benchmarks.readers.ratings import MarkedCaption

_GET_CAPARENA = "https://github.com/njucckevin/CapArena (section 'Reproduce the results from the paper')"

# The order of the paper's human ranking, best first; its scripts compare every metric with this list.
HUMAN_ORDER = (
    "GPT-4o-0806", "human", "Gemini-2.0-flash-exp", "InternVL2-26B", "Gemini-1.5-pro-002", "Claude-3.5-Sonnet-0620",
    "GPT-4o-mini-0718", "LLama-3.2-90B", "Qwen2-VL-72B-Instruct", "CogVLM2-llama3-chat-19B", "MiniCPM-V2.6-8B",
    "Qwen2-VL-7B-Instruct", "Qwen2-VL-2B-Instruct", "LLaVA-1.6-34B", "LLaVA-1.5-7B",
)  # fmt: skip
_TIES = ("equal", "skip", "bad")


def read_caparena(root: Path, *, file: str = "caparena_annots_eval.json") -> ItemSet[Battle]:
    """Read all battles of the annotation file; the protocol excludes those against the human writer.

    The labels equal, skip and bad mean a tie, as in the paper's figures.
    """
    path = find(root, file, f"eval/{file}", f"data/eval/{file}", get=_GET_CAPARENA)
    images = folder(root, "images", "data/eval/images", "eval/images", "page_all_images", "all_images")
    battles = []
    for row in records(read_json(path, list), path):
        first, second, verdict, image = map(row.get, ("source1", "source2", "winner", "img"))
        winners: dict[str, Winner] = {**dict.fromkeys(_TIES, "tie"), second: "b", first: "a"}
        if verdict not in winners:
            expected = ", ".join((first, second, *_TIES))
            raise InputError(f"{row.where}: expected winner to be one of {expected}, got {verdict!r}")
        captions, fields = (row.get("caption1"), row.get("caption2")), row.fields
        battles.append(Battle(
            f"{row.key}:{image}", images / image, *captions, winners[verdict], first, second,
            level=str(fields.get("cluster", "")), subset="in-400" if fields.get("in-400") else "", verdict=verdict,
            references=(fields["ref"],) if fields.get("ref") else (),
        ))  # fmt: skip
    return ItemSet(tuple(battles))


ASPECTS = ("mistakes", "omissions", "overall_quality")
_GET_DOCENT = "https://huggingface.co/datasets/amitha/docent-eval-coarse (images: amitha/docent)"
_ANSWERS = ("1_much_better", "1_slightly_better", "equal", "2_slightly_better", "2_much_better")
_PREFERENCES = {answer: 2 - number for number, answer in enumerate(_ANSWERS)}
_DOCENT_TEXTS = ("uuid", "model1", "model2", "model1_generation", "model2_generation", "reference")
_DOCENT_FOLDERS = ("docent-eval-coarse", "coarse", "coarse_annotations", "docent-eval")


def read_docent(root: Path, *, split: str = "") -> ItemSet[Battle]:
    """Read DocENT, art students' coarse judgements; images are in the Parquet files of `docent/`, or in `images/`.

    The default `split` is `test`, or `coarse`, its name in folders with both kinds of judgements.
    """
    locations = (*(f"{name}/**/" for name in _DOCENT_FOLDERS), "data/", "")
    stored, images, seen, battles = _docent_images(root), folder(root, "images"), Counter[str](), []
    for file in _docent_tables(root, (split,) if split else ("test", "coarse"), locations, get=_GET_DOCENT):
        table = read_columns(file, _DOCENT_TEXTS + ASPECTS)
        for row_index, cells in enumerate(zip(*table.values(), strict=True)):
            row = dict(zip(table, cells, strict=True))
            for name in ASPECTS:
                if row[name] not in _PREFERENCES:
                    expected = ", ".join(_PREFERENCES)
                    raise InputError(f"{file} row {row_index} {name}: expected one of {expected}, got {row[name]!r}")
            uuid, preference = str(row["uuid"]).strip(), _PREFERENCES[row["overall_quality"]]
            winner: Winner = "tie" if preference == 0 else "a" if preference > 0 else "b"
            battles.append(Battle(
                numbered(uuid, seen), stored.find(uuid) or images / f"{uuid}.jpg",
                row["model1_generation"], row["model2_generation"], winner, row["model1"], row["model2"],
                verdict=row["overall_quality"], references=(row["reference"],) if row["reference"] else (),
                aspects={name: _PREFERENCES[row[name]] for name in ASPECTS},
            ))  # fmt: skip
    return ItemSet(tuple(battles))


_GET_SPANS = "https://huggingface.co/datasets/amitha/docent-eval-granular (images: there, or amitha/docent)"
_SPAN_FOLDERS = ("docent-eval-granular", "granular", "granular_annotations", "docent-eval")


def read_docent_spans(root: Path, *, split: str = "test") -> list[MarkedCaption]:
    """Read DocENT's granular annotations: captions with the spans that art students marked as mistakes.

    Omissions are marked in the reference, which a reference-free score does not read; they are ignored.
    """
    names = (split, "granular") if split == "test" else (split,)
    locations = (*(f"{name}/**/" for name in _SPAN_FOLDERS), "granular-")
    stored, images, captions = _docent_images(root), folder(root, "images"), []
    for file in _docent_tables(root, names, locations, get=_GET_SPANS):
        embedded = StoredImages([file] if "image" in pq.read_schema(file).names else (), "uuid")
        table = read_columns(file, ("uuid", "model", "generation", "mistakes"))
        for row_index, (uuid, model, text, marks) in enumerate(zip(*table.values(), strict=True)):
            key = str(uuid).strip()
            image = embedded.find(key) or stored.find(key) or images / f"{key}.jpg"
            captions.append(MarkedCaption(
                f"{key}:{model}", image, str(text), spans=_spans(marks, len(str(text)), f"{file} row {row_index}")
            ))  # fmt: skip
    return captions


def _docent_tables(root: Path, names: Sequence[str], locations: Sequence[str], *, get: str) -> list[Path]:
    """Return the Parquet files of a split in the first location that has any."""
    patterns = [f"{location}{name}-*.parquet" for name in names for location in locations]
    tables = find_all(root, *patterns)
    if not tables:
        raise missing_error(root, patterns[0], patterns[-1], get=get)
    return tables


def _docent_images(root: Path) -> StoredImages:
    """Return the images in Parquet files by uuid."""
    patterns = ("docent/**/*.parquet", "images/**/*.parquet", "images_parquet/**/*.parquet")
    return StoredImages(find_all(root, *patterns), "uuid")


def _spans(marks: object, length: int, where: str) -> tuple[tuple[int, int], ...]:
    """Return the character spans of a JSON list of {"start", "end"}, clipped to the text."""
    try:
        parsed = json.loads(str(marks)) if isinstance(marks, str) else list(marks or ())  # type: ignore[call-overload]
        spans = [(max(0, int(span["start"])), min(length, int(span["end"]))) for span in parsed]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: expected mistakes as a JSON list of start and end, got {marks!r}") from error
    return tuple(sorted((start, end) for start, end in spans if start < end))
