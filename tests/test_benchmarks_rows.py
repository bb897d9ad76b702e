"""Benchmarks as rows, and readers of THumB and long captions, on small files."""

import numpy as np
import pytest

from bench_sets import write_rows
from msdscore.errors import InputError, UnknownNameError
from msdscore.intervals import Resampling
from msdscore_lab.benchmarks.protocols.counting import evaluate
from msdscore_lab.benchmarks.readers.ratings import read_long_words
from msdscore_lab.benchmarks.readers.rows import captioned_images
from msdscore_lab.benchmarks.registry import benchmark, load
from real_data import FOLDER, needs

QUICK = Resampling(samples=30)


def values(name, items, scores):
    return {figure.name: figure for figure in evaluate(benchmark(name), items, scores, how=QUICK)}


@pytest.mark.parametrize("given", ["1e999", '"good"', "[1, null]"])
def test_ratings_must_be_numbers(tmp_path, given):
    (tmp_path / "dev_flickr8k_expert.jsonl").write_text(f'{{"image": "a.jpg", "caption": "x", "expert": {given}}}')
    with pytest.raises(InputError, match="row 1: .*number as rating"):
        load("flickr8k-expert", tmp_path)


def test_pairs_with_a_label_put_the_preferred_caption_first(tmp_path):
    rows = [
        {"image": "a.jpg", "category": "HC", "captions": ["x", "y"], "label": label, "references": [" r  s "]}
        for label in (0, 1)
    ]
    write_rows(tmp_path / "dev_pascal50s.jsonl", rows)
    first, second = load("pascal50s", tmp_path).items
    assert (first.positive, second.positive, first.subset, first.references) == ("x", "y", "HC", ("r s",))
    assert [first.id, second.id] == ["a:0", "a:1"]
    write_rows(tmp_path / "dev_pascal50s.jsonl", [{**rows[0], "label": 2}])
    with pytest.raises(InputError, match="got label 2"):
        load("pascal50s", tmp_path)


def test_ratings_may_be_one_number_or_several(tmp_path):
    write_rows(tmp_path / "composite.jsonl", [{"image": "a.jpg", "subset": "coco", "caption": "x", "human": 3}])
    assert load("composite", tmp_path).items[0].ratings == (3.0,)
    write_rows(tmp_path / "flickr8k_cf.jsonl", [{"image": "a.jpg", "caption": "x", "ratings": [0.5, 1]}])
    assert load("flickr8k-cf", tmp_path).items[0].ratings == (0.5, 1.0)


def test_battle_winner_is_a_letter_a_name_or_an_answer(tmp_path):
    row = {"image": "a.jpg", "caption_a": "x", "caption_b": "y", "system_a": "one", "system_b": "two"}
    rows = [{**row, "winner": said} for said in ("a", "two", "equal", "bad")]
    write_rows(tmp_path / "caparena.jsonl", [*rows, {**row, "aspects": {"overall_quality": -2}}])
    items = load("caparena", tmp_path).items
    assert [item.winner for item in items] == ["a", "b", "tie", "tie", None]
    assert items[4].aspects == {"overall_quality": -2}
    write_rows(tmp_path / "caparena.jsonl", [{**row, "winner": "three"}])
    with pytest.raises(InputError, match="got 'three'"):
        load("caparena", tmp_path)


def test_captions_are_paired_with_easy_or_hard_negatives(tmp_path):
    names = ("airport_1", "airport_2", "beach_1", "beach_2", "farm_1")
    write_rows(tmp_path / "rsicd.jsonl", [{"image": f"{n}.jpg", "captions": [f"the {n}", f"a {n}"]} for n in names])
    easy, hard = load("rsicd", tmp_path, seed=1), load("rsicd", tmp_path, seed=1, negatives="hard")
    assert len(easy) == 5
    assert {pair.positive: pair.negative.split(" ")[1] for pair in hard.items} == {
        "the airport_1": "airport_2", "the airport_2": "airport_1", "the beach_1": "beach_2", "the beach_2": "beach_1",
    }  # fmt: skip
    assert hard.notes == {"images left out: no other caption in their scene class": 1}
    assert [pair.negative for pair in load("rsicd", tmp_path, seed=2).items] != [p.negative for p in easy.items]
    with pytest.raises(UnknownNameError, match="'hrad'.*'hard'"):
        load("rsicd", tmp_path, negatives="hrad")


def test_rows_of_one_image_are_merged(tmp_path):
    rows = [{"image": "a.jpg", "caption": "x"}, {"image": "b.jpg", "caption": "z"}, {"image": "a.jpg", "caption": "y"}]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert [entry.captions for entry in captioned_images(tmp_path / "rows.jsonl")] == [("x", "y"), ("z",)]
    write_rows(tmp_path / "rows.jsonl", [{"image": "a.jpg", "captions": ["x", "y"]}] * 2)
    assert [entry.captions for entry in captioned_images(tmp_path / "rows.jsonl")] == [("x", "y")] * 2


def test_rows_file_is_found_by_words_of_its_name(tmp_path):
    row = {"image": "a.jpg", "caption": "x", "negative_caption": "y"}
    write_rows(tmp_path / "mysugarcrepes.jsonl", [row])
    with pytest.raises(InputError, match="found no such file"):
        load("sugarcrepe", tmp_path)
    write_rows(tmp_path / "dev_sugarcrepe.jsonl", [row])
    assert len(load("sugarcrepe", tmp_path)) == 1
    assert len(load("sugarcrepe", tmp_path / "mysugarcrepes.jsonl")) == 1  # a file may be passed directly
    write_rows(tmp_path / "test_sugarcrepe.jsonl", [row])
    with pytest.raises(InputError, match=r"\(dev_sugarcrepe.jsonl, test_"):
        load("sugarcrepe", tmp_path)
    (tmp_path / "table.csv").write_text("")
    with pytest.raises(InputError, match="table.csv: expected a folder"):
        load("sugarcrepe", tmp_path / "table.csv")


def thumb_rows():
    systems = {"Human": (5, 5), "Up-Down": (3, 2), "VinVL": (4, 4)}
    return [
        {"SYS": name, "seg_id": f"{k}", "set_id": 5 * k, "hyp": f" {name}  {k}", "image": f"COCO_val2014_{k}.jpg", "P": p,
         "R": r - k % 2, "Fl": -0.1, "Inc": 0, "Con": 0, "human_score": (p + r - k % 2) / 2 - 0.1}
        for k in range(4) for name, (p, r) in systems.items()
    ]  # fmt: skip


def test_thumb_in_its_released_format(tmp_path):
    write_rows(tmp_path / "mscoco_THumB-1.0.jsonl", thumb_rows())
    references = [{"seg_id": f"{k}", "set_id": 5 * k, "refs": [f"a  dog {k}", "dogs"]} for k in (1, 0)]
    write_rows(tmp_path / "mscoco_references.json", references)  # JSON Lines despite its name
    items = load("thumb", tmp_path).items
    assert items[0].id == "0/Human"
    assert (items[0].caption, items[0].ratings, items[0].references) == ("Human 0", (4.9,), ("a dog 0", "dogs"))
    assert (items[3].references, items[-1].references) == (("a dog 1", "dogs"), ())
    assert items[0].scales == {"precision": 5.0, "recall": 5.0}
    assert items[0].image == tmp_path / "val2014" / "COCO_val2014_0.jpg"
    totals = np.array([item.ratings[0] for item in items])
    found = values("thumb", items, totals)
    assert next(iter(found)) == "total"
    assert found["total"].value == pytest.approx(1)
    assert found["recall/machines"].value == pytest.approx(
        np.corrcoef(*np.array([(i.ratings[0], i.scales["recall"]) for i in items if i.system != "Human"]).T)[0, 1]
    )
    assert (found["place of Human"].value, found["place of Human"].scale) == (1, 1)
    worst = values("thumb", items, -totals)
    assert worst["place of Human"].value == 3
    assert worst["mean/Human"].value < 0 < worst["mean/Up-Down"].value


@pytest.mark.parametrize(("apart", "pairs"), [(5, 1), (6, 0)])
def test_long_captions_of_the_same_length_are_within_five_words(tmp_path, apart, pairs):
    texts = {"clean": "dog " * 80, "inventing": "cat " * (80 + apart)}  # a tenth of 80 words would be eight
    rows = [
        {"image": "1.jpg", "caption": text, "hallucinated": ["cat"] if name == "inventing" else [], "objects": []}
        for name, text in texts.items()
    ]
    write_rows(tmp_path / "dev_long.jsonl", rows)
    found = values("long-captions", load("long-captions", tmp_path).items, [1.0, 0.0])
    assert found["pairs/matched length"].n == pairs


def test_long_captions_are_paired_within_an_image_and_at_matched_length(tmp_path):
    texts = {"clean": "a dog on a lawn " * 4, "short": "a dog", "inventing": "a dog and a cat now " * 3 + "yes it is"}
    rows = [
        {"image": f"{k}.jpg", "caption": text, "hallucinated": ["cat"] if name == "inventing" else [], "objects": ["dog"]}
        for k in range(3) for name, text in texts.items()
    ]  # fmt: skip
    write_rows(tmp_path / "dev_long.jsonl", rows)
    items = load("long-captions", tmp_path).items
    assert [item.ratings[0] for item in items[:3]] == [1.0, 1.0, 0.0]
    shorter = values("long-captions", items, [-len(item.caption.split()) for item in items])
    assert (shorter["pairs"].value, shorter["pairs"].n) == (1.0, 6)
    right = values("long-captions", items, [("cat" not in item.caption) - (item.caption == "a dog") for item in items])
    assert (right["pairs"].value, right["pairs"].n, right["pairs"].ties) == (0.75, 6, 3)
    assert (right["pairs/matched length"].value, right["pairs/matched length"].n) == (1.0, 3)
    marked = read_long_words(tmp_path)[2]
    assert (marked.present, marked.absent) == (("dog",), ("cat",))


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        pytest.param(name, file, count, marks=needs(f"{file}.jsonl"), id=name)
        for name, file, count in (
        ("sugarcrepe", "dev_sugarcrepe", 3215), ("flickr8k-expert", "dev_flickr8k_expert", 2838),
        ("thumb", "dev_thumb", 1160), ("composite", "dev_composite", 2133), ("pascal50s", "dev_pascal50s", 567),
        ("long-captions", "dev_long", 1826), ("rsicd", "dev_rsicd", 400),
        )
    ],
)  # fmt: skip
def test_real_rows(name, file, count):
    items = load(name, FOLDER / f"{file}.jsonl").items
    assert len(items) == count
    assert items[0].image.read()[:4] == b"RIFF"
