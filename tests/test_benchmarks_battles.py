"""Readers of battle benchmarks, on small files in the released formats."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msdscore.errors import InputError
from msdscore_lab.benchmarks.base import Battle, image_source
from msdscore_lab.benchmarks.readers.battles import read_docent_spans
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.studies.words import mentions_of


def _row(img: str, winner: str, first: str = "GPT-4o-0806", second: str = "LLaVA-1.5-7B") -> dict[str, Any]:
    row = {"img": img, "source1": first, "source2": second, "caption1": "one", "caption2": "two", "ref": "r"}
    return {**row, "winner": winner, "cluster": "level 2", "in-400": winner == "equal"}


def test_caparena_reads_every_verdict(tmp_path: Path) -> None:
    rows = [_row("test_1.jpg", w) for w in ("GPT-4o-0806", "LLaVA-1.5-7B", "equal", "skip", "bad")]
    rows.append(_row("test_1.jpg", "human", first="human"))
    (tmp_path / "data" / "eval").mkdir(parents=True)
    (tmp_path / "data" / "eval" / "caparena_annots_eval.json").write_text(json.dumps(rows))
    items = load("caparena", tmp_path).items
    assert [item.winner for item in items] == ["a", "b", "tie", "tie", "tie", "a"]
    assert [item.verdict for item in items][2:5] == ["equal", "skip", "bad"]
    assert len({item.id for item in items}) == 6  # battles repeat images and systems
    assert items[2] == Battle(
        id="2:test_1.jpg",
        image=tmp_path / "images" / "test_1.jpg",
        caption_a="one",
        caption_b="two",
        winner="tie",
        system_a="GPT-4o-0806",
        system_b="LLaVA-1.5-7B",
        level="level 2",
        subset="in-400",
        verdict="equal",
        references=("r",),
    )


def test_caparena_rejects_an_unknown_verdict(tmp_path: Path) -> None:
    (tmp_path / "caparena_annots_eval.json").write_text(json.dumps([_row("a.jpg", "tie")]))
    with pytest.raises(InputError, match="got 'tie'"):
        load("caparena", tmp_path)


def test_judge_files_are_read_as_battles(tmp_path: Path) -> None:
    said = ["Caption 1 is better.", "Caption 2 is better", "Tie.", "Tie", "Both are fine", None]
    rows = [{**_row("a.jpg", "equal"), **({"judge": word} if word else {})} for word in said]
    (tmp_path / "caparena_annots_eval.json").write_text(json.dumps(rows))
    assert len(load("caparena", tmp_path)) == 6


_LABELS = [("1_much_better", "equal", "2_slightly_better"), ("equal", "2_much_better", "equal")]


def _docent(path: Path, labels: list[tuple[str, str, str]] = _LABELS) -> None:
    n = len(labels)
    texts = {"uuid": [" u1 "] * n, "model1": ["A"] * n, "model2": ["B"] * n, "reference": ["r"] * n}
    texts |= {"model1_generation": ["one"] * n, "model2_generation": ["two"] * n}
    names = ("mistakes", "omissions", "overall_quality")
    answers = {name: [row[i] for row in labels] for i, name in enumerate(names)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**texts, **answers}), path)


def test_docent_reads_three_aspects_and_finds_the_image(tmp_path: Path) -> None:
    _docent(tmp_path / "docent-eval-coarse" / "data" / "test-00000-of-00001.parquet")
    _docent(tmp_path / "docent-eval-coarse" / "data" / "train-00000-of-00001.parquet", _LABELS * 2)
    items = load("docent", tmp_path).items
    assert [item.id for item in items] == ["u1:0", "u1:1"]
    assert items[0].aspects == {"mistakes": 2, "omissions": 0, "overall_quality": -1}
    assert [item.winner for item in items] == ["b", "tie"]
    assert items[0].image == tmp_path / "images" / "u1.jpg"
    assert len(load("docent", tmp_path, split="train")) == 4
    cells = [{"bytes": b"other", "path": "0"}, {"bytes": b"painting", "path": "1"}]
    (tmp_path / "docent" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"uuid": ["u0", "u1"], "image": cells}), tmp_path / "docent" / "data" / "test-0.parquet")
    assert image_source(load("docent", tmp_path).items[0].image) == b"painting"


def test_docent_rejects_unknown_labels_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test-\*\.parquet .*https://hugg"):
        load("docent", tmp_path)
    _docent(tmp_path / "test-0.parquet", [("better", "equal", "equal")])
    with pytest.raises(InputError, match="row 0 mistakes: .*'better'"):
        load("docent", tmp_path)


def test_docent_spans_are_read_and_content_words_inside_them_are_marked(tmp_path: Path) -> None:
    text = "A woman in a blue dress holds a silver cup."
    marks = [{"start": text.index("blue"), "end": text.index("blue") + 10}, {"start": 38, "end": 999}]
    table = {"uuid": [" u1 ", "u1"], "model": ["A", "B"], "generation": [text, "A cup."], "reference": ["r", "r"]}
    table |= {"mistakes": [json.dumps(marks), "[]"], "omissions": ["[]", "[]"]}
    path = tmp_path / "docent-eval-granular" / "data" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(table), path)
    first, second = read_docent_spans(tmp_path)
    assert (first.id, first.image, second.spans) == ("u1:A", tmp_path / "images" / "u1.jpg", ())
    assert [text[slice(*span)] for span in first.spans or ()] == ["blue dress", text[38:]]
    mentions = {text[slice(*span)]: invented for span, invented in mentions_of(first, {})}
    assert mentions["blue"]
    assert mentions["dress"]
    assert not mentions["woman"]
    assert not any(invented for _, invented in mentions_of(second, {}))
    pq.write_table(pa.table(table | {"mistakes": ["no list", "[]"]}), path)
    with pytest.raises(InputError, match="got 'no list'"):
        read_docent_spans(tmp_path)
