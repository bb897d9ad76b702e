"""Readers of rating benchmarks, on small files in the released formats."""

import json
from pathlib import Path
from typing import Any

import pytest

from msdscore.errors import InputError
from msdscore_lab.benchmarks.protocols.counting import evaluate
from msdscore_lab.benchmarks.registry import benchmark, load

_TOKENS = {
    "1.jpg": ["a dog runs .", "the  dog", "dog", "brown dog", "a pet"],
    "2.jpg": ["a cat .", "the cat", "cat", "black cat", "a pet"],
    "3_x.jpg.1": ["a bird", "the bird", "bird", "small bird", "an animal"],
}
_EXPERT = [
    ("1.jpg", "2.jpg#0", 1, 1, 2),
    ("1.jpg", "1.jpg#2", 4, 4, 4),  # the image's own caption
    ("1.jpg", "2.jpg#4", 2, 2, 3),  # of another image, but identical to one of this image
    ("2.jpg", "1.jpg#1", 1, 2, 1),
    ("1.jpg", "2.jpg#1", 2, 3, 2),
    ("3_x.jpg", "1.jpg#0", 1, 1, 1),
]
_CROWD = [
    ("1.jpg", "1.jpg#1", "1.0", 3, 0),
    ("1.jpg", "2.jpg#0", "0.333333333333", 1, 2),
    ("2.jpg", "1.jpg#0", "0.0", 0, 3),
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    tokens = [f"{image}#{k}\t{text}" for image, texts in _TOKENS.items() for k, text in enumerate(texts)]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(tokens) + "\n")
    for name, rows in (("Expert", _EXPERT), ("CrowdFlower", _CROWD)):
        lines = ("\t".join(map(str, row)) for row in rows)
        (tmp_path / f"{name}Annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_expert_drops_captions_that_equal_a_reference(raw: Path) -> None:
    reading = load("flickr8k-expert", raw)
    assert [(item.id, item.caption, item.ratings) for item in reading.items] == [
        ("1:0", "a cat .", (1.0, 1.0, 2.0)),
        ("2:0", "the dog", (1.0, 2.0, 1.0)),
        ("1:1", "the cat", (2.0, 3.0, 2.0)),
        ("3_x:0", "a dog runs .", (1.0, 1.0, 1.0)),
    ]
    assert reading.notes == {"pairs left out: the caption is one of the image's own": 2}
    assert reading.items[0].references == ("a dog runs .", "the dog", "dog", "brown dog", "a pet")
    assert reading.items[3].references[0] == "a bird"  # listed as 3_x.jpg.1


def test_image_folder_may_have_either_name(raw: Path) -> None:
    assert load("flickr8k-expert", raw).items[0].image == raw / "Flicker8k_Dataset" / "1.jpg"
    (raw / "Flickr8k_Dataset").mkdir()
    assert load("flickr8k-expert", raw).items[0].image == raw / "Flickr8k_Dataset" / "1.jpg"


def _entry(image: str, folder: str, judged: list[tuple[str, float]], references: list[str]) -> dict[str, Any]:
    path = f"{folder}/{image.removesuffix('.jpg')}.jpg"
    rows = [{"image_id": image, "image_path": path, "caption": c, "rating": r} for c, r in judged]
    return {"human_judgement": rows, "image_id": image, "image_path": path, "ground_truth": references}


def test_expert_json_yields_the_same_items(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("packed")
    from_text = load("flickr8k-expert", raw).items
    packed: dict[str, Any] = {}
    for item in from_text:
        stem = item.id.split(":")[0]
        entry = packed.setdefault(stem, _entry(stem, "Flickr8k_Dataset", [], list(item.references)))
        judged = [(f" {item.caption}", rating) for rating in item.ratings]
        entry["human_judgement"] += _entry(stem, "Flickr8k_Dataset", judged, [])["human_judgement"]
    (other / "flickr8k.json").write_text(json.dumps(packed))
    from_json = load("flickr8k-expert", other).items
    assert {i.id: (i.caption, i.ratings, i.references, i.image.name) for i in from_json} == {
        i.id: (i.caption, i.ratings, i.references, i.image.name) for i in from_text
    }


def test_expert_json_needs_three_ratings_per_caption(tmp_path: Path) -> None:
    two = _entry("1", "Flicker8k_Dataset", [("a", 1), ("a", 2)], [])
    (tmp_path / "flickr8k.json").write_text(json.dumps({"1": two}))
    with pytest.raises(InputError, match="got 2 ratings in all"):
        load("flickr8k-expert", tmp_path)
    mixed = _entry("1", "Flicker8k_Dataset", [("a", 1), ("a", 2), ("b", 2)], [])
    (tmp_path / "flickr8k.json").write_text(json.dumps({"1": mixed}))
    with pytest.raises(InputError, match="3 consecutive ratings"):
        load("flickr8k-expert", tmp_path)


def test_expert_rows_have_the_ids_of_the_text_files(raw: Path, tmp_path: Path) -> None:
    rows = [
        {"image": f"{i.id.split(':')[0]}.jpg", "caption": i.caption, "caption_id": "z#0", "expert": [1, 2, 3]}
        for i in load("flickr8k-expert", raw).items
    ]
    path = tmp_path / "part_flickr8k_expert.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = load("flickr8k-expert", path).items
    assert [item.id for item in items] == ["1:0", "2:0", "1:1", "3_x:0"]
    assert items[0].ratings == (1.0, 2.0, 3.0)


def test_crowdflower_removes_rated_captions_from_the_references(raw: Path) -> None:
    items = load("flickr8k-cf", raw).items
    assert [(item.id, item.caption, item.ratings) for item in items] == [
        ("1:0", "the dog", (1.0,)),
        ("1:1", "a cat .", (0.333333333333,)),
        ("2:0", "a dog runs .", (0.0,)),
    ]
    # A rated caption is removed from the references of all captions of its image.
    assert items[1].references == ("a dog runs .", "dog", "brown dog", "a pet")
    assert len(items[2].references) == 5


def test_crowdflower_json_keys_keep_their_suffix(tmp_path: Path) -> None:
    entry = _entry("1.jpg", "Flicker8k_Dataset", [("the dog", 1.0), ("a cat", 0.25)], ["dog"])
    (tmp_path / "crowdflower_flickr8k.json").write_text(json.dumps({"1.jpg": entry}))
    items = load("flickr8k-cf", tmp_path).items
    assert [(item.id, item.ratings) for item in items] == [("1:0", (1.0,)), ("1:1", (0.25,))]
    assert items[0].image == tmp_path / "Flicker8k_Dataset" / "1.jpg"


def test_items_without_rating_are_dropped(tmp_path: Path) -> None:
    judged = [("a", 1.0), ("b", float("nan")), ("c", 0.5), ("d", 0.0)]
    (tmp_path / "crowdflower_flickr8k.json").write_text(json.dumps({"1.jpg": _entry("1.jpg", "x", judged, [])}))
    items = load("flickr8k-cf", tmp_path).items
    for scores in ([4.0, 3.0, 2.0, 1.0], [4.0, 3.0, float("nan"), 1.0]):
        figures = evaluate(benchmark("flickr8k-cf"), items, scores)
        known = sum(score == score for score in scores) - 1
        assert {figure.name: (figure.value, figure.n) for figure in figures}["tau_b"] == (1.0, known)


def test_missing_flickr8k_files_are_rejected(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InputError, match=r"ExpertAnnotations\.txt or"):
        load("flickr8k-expert", empty)
    with pytest.raises(InputError, match=r"CrowdFlowerAnnotations\.txt or"):
        load("flickr8k-cf", empty)
    (raw / "Flickr8k.token.txt").unlink()
    with pytest.raises(InputError, match=r"Flickr8k\.token\.txt, found no"):
        load("flickr8k-expert", raw)


def test_damaged_flickr8k_files_are_rejected(raw: Path) -> None:
    (raw / "ExpertAnnotations.txt").write_text("1.jpg\t2.jpg#0\t1\t1\n")
    with pytest.raises(InputError, match="line 1: expected 5 .*got 4"):
        load("flickr8k-expert", raw)
    (raw / "ExpertAnnotations.txt").write_text("1.jpg\t99.jpg#0\t1\t1\t1\n")
    with pytest.raises(InputError, match=r"99\.jpg#0 is not in"):
        load("flickr8k-expert", raw)


def _export(path: Path, urls: list[str], texts: int) -> None:
    names = [f"Input.text{k}" for k in range(1, texts + 1)]
    answers = [f"Answer.Q{k}Answer" for k in range(1, texts + 1)]
    lines = [";".join(["HITId", "Input.image_url", *names, *answers])]
    for url in urls:
        captions = [f"caption {k} of {url[-5:]}" for k in range(texts)]
        lines.append(";".join(["h", url, *captions, *(str(k + 1) for k in range(texts))]))
    lines += [";;" + ";" * (2 * texts - 1), ";" * (2 * texts + 1)]  # the exports end in two empty rows
    path.write_bytes("\n".join(lines).encode("cp1252"))


def test_composite_exports(tmp_path: Path) -> None:
    _export(tmp_path / "8k_correctness.csv", ["http://x/Flicker8k/11_a.jpg", "http://x/12_é.jpg"], 3)
    _export(tmp_path / "30k_correctness.csv", ["http://x/30.jpg"], 4)
    _export(tmp_path / "coco_correctness.csv", ["http://x/COCO_val2014_000000000042.jpg"], 4)
    coco = [{"image_id": 42, "caption": t} for t in ("caption 1 of 2.jpg", "an own one")]
    (tmp_path / "captions_val2014.json").write_text(json.dumps({"annotations": coco}))
    (tmp_path / "results_20130124.token").write_text("30.jpg#0\town words\n30.jpg#1\tmore words\n")
    reading = load("composite", tmp_path)
    assert [item.subset for item in reading.items].count("flickr8k") == 6
    assert len(reading) == 14
    assert reading.notes == {"export rows left out: no image or no rating": 6}
    by_id = {item.id: item for item in reading.items}
    rated = by_id["coco/COCO_val2014_000000000042:1"]
    assert (rated.caption, rated.ratings, rated.references) == ("caption 1 of 2.jpg", (2.0,), ("an own one",))
    assert by_id["flickr30k/30:3"].references == ("own words", "more words")
    assert by_id["flickr8k/12_é:0"].image == tmp_path / "Flicker8k_Dataset" / "12_é.jpg"


def test_composite_json_form(tmp_path: Path) -> None:
    rows = {
        "flickr8k": [{"image": "Flickr8k_Dataset/11_a.jpg", "caption": "x  y", "human": 3}],
        "flickr30k": [{"image": "30", "caption": "z", "human": 5.0}],
        "coco": [{"image": "COCO_val2014_000000000042.jpg", "caption": "w", "human": 1}],
    }
    (tmp_path / "composite.json").write_text(json.dumps(rows))
    items = load("composite", tmp_path).items
    assert [(item.id, item.caption, item.ratings, item.image.name) for item in items] == [
        ("flickr8k/11_a:0", "x y", (3.0,), "11_a.jpg"),
        ("flickr30k/30:0", "z", (5.0,), "30.jpg"),
        ("coco/COCO_val2014_000000000042:0", "w", (1.0,), "COCO_val2014_000000000042.jpg"),
    ]
    (tmp_path / "composite.json").write_text(json.dumps({"flickr9k": []}))
    with pytest.raises(InputError, match="got 'flickr9k'"):
        load("composite", tmp_path)


def test_missing_composite_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"8k_correctness\.csv .*no such"):
        load("composite", tmp_path)
