"""Readers of pairwise benchmarks, on small files in the released formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat

from command_line import invoke
from msdscore.errors import ConfigError, ImageError, InputError, UnknownNameError
from msdscore_lab.benchmarks.base import Pair, image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage, draw_pairs
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark


def _dump(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _crepe(n: int) -> dict[str, str]:
    return {"filename": f"{n:012d}.jpg", "caption": f"right {n}", "negative_caption": f"wrong {n}"}


@pytest.fixture
def crepe(tmp_path: Path) -> Path:
    for subset in ("replace_obj", "replace_att", "replace_rel", "swap_att", "add_obj", "add_att"):
        _dump(tmp_path / "data" / f"{subset}.json", {"0": _crepe(1), "1": _crepe(2)})
    _dump(tmp_path / "data" / "swap_obj.json", {"0": _crepe(1), "3": _crepe(4), "17": _crepe(9)})
    return tmp_path


def test_sugarcrepe_accepts_keys_with_gaps(crepe: Path) -> None:
    items = load("sugarcrepe", crepe).items
    assert len(items) == 15
    swapped = [item for item in items if item.subset == "swap_obj"]
    assert [item.id for item in swapped] == ["swap_obj/0", "swap_obj/3", "swap_obj/17"]
    assert swapped[2] == Pair("swap_obj/17", crepe / "val2017" / "000000000009.jpg", "right 9", "wrong 9", "swap_obj")
    assert swapped[2].captions == ("right 9", "wrong 9")


def test_sugarcrepe_uses_the_existing_image_folder(crepe: Path) -> None:
    (crepe / "images" / "val2017").mkdir(parents=True)
    items = load("sugarcrepe", crepe, subsets=["add_att"]).items
    assert items[0].image == crepe / "images" / "val2017" / "000000000001.jpg"


def test_missing_file_error_names_file_and_source(crepe: Path) -> None:
    (crepe / "data" / "swap_obj.json").unlink()
    with pytest.raises(InputError, match=r"swap_obj\.json or .*no such") as caught:
        load("sugarcrepe", crepe)
    assert "github.com/RAIVNLab/sugar-crepe" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_invalid_file_error_names_the_file(crepe: Path) -> None:
    (crepe / "data" / "add_att.json").write_text('{"0": ')
    with pytest.raises(InputError, match=r"add_att\.json is not valid"):
        load("sugarcrepe", crepe)
    _dump(crepe / "data" / "add_att.json", {"7": {"filename": "a.jpg", "caption": "x"}})
    with pytest.raises(InputError, match="key 7: .*negative_caption"):
        load("sugarcrepe", crepe)


def _write_images(path: Path, key: str, names: list[str], **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": f"picture {name}".encode(), "path": name} for name in names]
    pq.write_table(pa.table({key: names, "image": cells, **more}), path, row_group_size=2)


def _rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def test_sugarcrepe_rows_form_reads_images_from_parquet(tmp_path: Path) -> None:
    texts = {"caption": "right \u2028 line", "negative_caption": "wrong"}
    rows = [{"subset": "add_att", "key": str(k), "image": f"{k}.jpg", **texts} for k in (0, 3, 4)]
    _rows(tmp_path / "half_sugarcrepe.jsonl", rows)
    _write_images(tmp_path / "half_sugarcrepe.images-0.parquet", "file_name", ["4.jpg", "9.jpg", "0.jpg"])
    _write_images(tmp_path / "half_sugarcrepe.images-1.parquet", "file_name", ["3.jpg"])
    for root in (tmp_path, tmp_path / "half_sugarcrepe.jsonl"):
        items = load("sugarcrepe", root).items
        assert [item.id for item in items] == ["add_att/0", "add_att/3", "add_att/4"]
        assert items[0].captions[0] == "right \u2028 line"
        assert [image_source(item.image) for item in items] == [
            b"picture 0.jpg",
            b"picture 3.jpg",
            b"picture 4.jpg",
        ]


def test_subset_option_in_both_formats(crepe: Path, tmp_path: Path) -> None:
    assert {item.subset for item in load("sugarcrepe", crepe, subsets="add_att").items} == {"add_att"}
    texts = {"image": "a.jpg", "caption": "right", "negative_caption": "wrong"}
    _rows(tmp_path / "sugarcrepe.jsonl", [{"subset": s, "key": "1", **texts} for s in ("add_att", "swap_obj")])
    assert [item.id for item in load("sugarcrepe", tmp_path, subsets="swap_obj").items] == ["swap_obj/1"]
    with pytest.raises(UnknownNameError, match="'swap_ob'.*'swap_obj'"):
        load("sugarcrepe", tmp_path, subsets="swap_ob")


def test_rows_are_read_without_images_and_duplicate_ids_are_rejected(tmp_path: Path) -> None:
    row = {"subset": "s", "key": "1", "image": "a.jpg", "caption": "x", "negative_caption": "y"}
    _rows(tmp_path / "sugarcrepe.jsonl", [row])
    assert load("sugarcrepe", tmp_path).items[0].image == tmp_path / "a.jpg"
    _rows(tmp_path / "sugarcrepe.jsonl", [row, row])
    with pytest.raises(InputError, match="the id 's/1' occurs twice"):
        load("sugarcrepe", tmp_path)
    (tmp_path / "sugarcrepe.jsonl").write_text("{}\n\nnot json\n")
    with pytest.raises(InputError, match="row 1: .*field image"):
        load("sugarcrepe", tmp_path)


def test_empty_image_cell_is_rejected(tmp_path: Path) -> None:
    _rows(tmp_path / "sugarcrepe.jsonl", [{"image": "a.jpg", "caption": "x", "negative_caption": "y"}])
    table = pa.table({"file_name": ["a.jpg"], "image": [{"bytes": None, "path": "a.jpg"}]})
    pq.write_table(table, tmp_path / "sugarcrepe.images.parquet")
    with pytest.raises(ImageError, match=r"row 0 \(a\.jpg\) .*no image"):
        image_source(load("sugarcrepe", tmp_path).items[0].image)


@pytest.mark.parametrize(("wrong", "accuracy"), [("a {} on a zebra", 1.0), ("{} on a a horse", 0.0)])  # ties are wrong
def test_results_on_coco_cf_have_the_accuracy_of_the_text_alone(tmp_path, wrong, accuracy):
    (tmp_path / "val2017").mkdir()
    for split in ("easy", "hard"):
        rows = []
        for number in range(30):
            name, animal = f"{number}.png", ("dog", "cat", "man")[number % 3]
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "val2017" / name)
            texts = {"caption": f"a {animal} on a horse", "negative_caption": wrong.format(animal)}
            rows.append({"image_id": number, "image_path": name, **texts})
        _dump(tmp_path / f"coco_cf_{split}.json", rows)
    answer = invoke(
        "bench", "coco-cf", "--root", tmp_path, "-o", tmp_path / "out", "-m", "length", "--samples", 9, "--json"
    )
    found = {metric["label"]: metric for metric in json.loads(answer.stdout)[0]["metrics"]}
    assert found["text-only"]["figures"][0]["value"] == accuracy


def test_coco_cf_reads_both_layouts_and_both_spellings(tmp_path: Path) -> None:
    row = {"image_id": 7, "image_path": "data/images/val2017/000000000007.jpg", "caption": "a"}
    _dump(tmp_path / "coco_cf_easy.json", [{**row, "negative_caption": "b"}, {**row, "negative_caption": "c"}])
    failed = {**row, "caption": "ERROR: timeout", "neg_caption": "b"}
    hard = {"data": [failed, {**row, "neg_caption": "d"}], "meta": {"gen_captions": "x"}}
    _dump(tmp_path / "coco_cf" / "coco_cf_hard.json", hard)
    reading = load("coco-cf", tmp_path)
    assert [item.id for item in reading.items] == ["easy/7:0", "easy/7:1", "hard/7:1"]
    assert [item.negative for item in reading.items] == ["b", "c", "d"]
    assert reading.items[0].image == tmp_path / "val2017" / "000000000007.jpg"
    assert reading.notes == {"failed generations left out": 1}


_PASCAL = {
    "HI": [
        {"image": "2008_1.jpg", "captions": ["bad", "good"], "label": 1, "references": ["r"] * 5},
        {"image": "2008_2.jpg", "captions": ["good", "bad"], "label": 0, "references": ["r"] * 5},
    ],
    "HC": [{"image": "2008_1.jpg", "captions": ["fine", "also fine"], "label": 0, "references": ["r"] * 5}],
}


def test_pascal_json_puts_the_preferred_caption_first(tmp_path: Path) -> None:
    _dump(tmp_path / "pascal_50s.json", _PASCAL)
    items = load("pascal50s", tmp_path).items
    assert [(item.subset, item.positive, item.negative) for item in items] == [
        ("HI", "good", "bad"),
        ("HI", "good", "bad"),
        ("HC", "fine", "also fine"),
    ]
    assert items[0].references == ("r",) * 5
    assert items[0].image == tmp_path / "JPEGImages" / "2008_1.jpg"
    _dump(tmp_path / "pascal_50s.json", {"HI": [{**_PASCAL["HI"][0], "label": 2}]})
    with pytest.raises(InputError, match="got label 2"):
        load("pascal50s", tmp_path)


def _cell(text: str) -> Any:
    boxed = np.empty((1, 1), dtype=object)
    boxed[0, 0] = text
    return boxed


def _mats(root: Path, wins: list[int]) -> None:
    """Write pairs as MATLAB structures; `wins` is the number of the 48 votes for the first caption of each."""
    root.mkdir(parents=True, exist_ok=True)
    pairs = np.empty((1, len(wins)), dtype=[("im", object), ("a", object), ("b", object)])
    votes = np.empty((1, 48 * len(wins)), dtype=[(name, object) for name in "ABCW"])
    for i, count in enumerate(wins):
        pairs[0, i] = (f"2008_{i}.jpg", f"first {i} ", f"second {i}")
        for k in range(48):
            # The vote file lists the two captions in the other order than the pair file.
            winner = -1 if k < count else 1
            captions = _cell(f"second {i}"), _cell(f" first {i}")
            votes[0, 48 * i + k] = (_cell(f"reference {i} {k}"), *captions, np.array([[winner]]))
    savemat(root / "pair_pascal.mat", {"new_input": pairs, "category": np.array([[1, 4][: len(wins)]])})
    savemat(root / "consensus_pascal.mat", {"triplets": votes})


def test_pascal_mat_files_decide_by_majority(tmp_path: Path) -> None:
    _mats(tmp_path / "pyCIDErConsensus", [30, 10])
    items = load("pascal50s", tmp_path).items
    assert [(i.id, i.subset, i.positive, i.votes) for i in items] == [
        ("HC/0", "HC", "first 0", (30, 18)),
        ("MM/1", "MM", "second 1", (38, 10)),
    ]
    assert len(set(items[0].references)) == 5
    assert all(text.startswith("reference 0 ") for text in items[0].references)


def test_pascal_ties_are_broken_by_seed_and_counted(tmp_path: Path) -> None:
    _mats(tmp_path, [24])
    chosen = {load("pascal50s", tmp_path, seed=seed).items[0].captions[0] for seed in range(12)}
    assert chosen == {"first 0", "second 0"}
    reading = load("pascal50s", tmp_path, seed=3)
    assert reading == load("pascal50s", tmp_path, seed=3)
    assert reading.notes == {"pairs whose votes are a draw, decided by seed": 1}


@pytest.mark.slow
def test_pascal_references_are_drawn_five_times_for_reference_metrics(tmp_path: Path) -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra 'references'")
    _mats(tmp_path, [30, 10])

    def run(*metrics: str) -> Any:
        made = BenchmarkPlan(name="pascal50s", root=tmp_path, metrics=metrics, samples=5)
        return run_benchmark(made, tmp_path / f"{metrics[0]}.json", lambda: pytest.fail("no encoder is needed"))

    drawn = run("rouge-l", "length")
    assert drawn.seeds == 5
    assert drawn.metric("rouge-l").figures[0].spread is not None
    assert len(list(tmp_path.glob("rouge-l.seed-*.parquet"))) == 5
    assert run("length").seeds == 1  # it does not depend on the draws


@pytest.mark.parametrize(("asked", "draws"), [(1, 5), (48, 1)])
def test_pascal_has_up_to_48_references(tmp_path: Path, asked: int, draws: int) -> None:
    _mats(tmp_path, [30])
    reading = load("pascal50s", tmp_path, references=asked)
    assert (len(reading.items[0].references), reading.draws) == (asked, draws)
    with pytest.raises(ConfigError, match="got 49"):
        load("pascal50s", tmp_path, references=49)


def test_pascal_json_finds_images_at_their_paths(tmp_path: Path) -> None:
    named = {"HI": [{**_PASCAL["HI"][0], "image": "VOC2012/JPEGImages/2008_1.jpg"}]}
    _dump(tmp_path / "pascal_50s.json", named)
    for place in ("VOC2012/JPEGImages", "VOCdevkit/VOC2010/JPEGImages", "JPEGImages"):
        path = tmp_path / place / "2008_1.jpg"
        path.parent.mkdir(parents=True)
        path.touch()
        assert load("pascal50s", tmp_path).items[0].image == path
        path.unlink()


def test_rsicd_pairs_come_from_other_images(tmp_path: Path) -> None:
    names = [f"rsicd_images/airport_{k}.jpg" for k in range(6)]
    captions = [[f"airport {k} .", f"again  {k}"] for k in range(5)] + [[]]
    _write_images(tmp_path / "data" / "test-00000-of-00001.parquet", "filename", names, captions=captions)
    reading = load("rsicd", tmp_path, seed=1)
    assert [item.positive for item in reading.items] == [f"airport {k} ." for k in range(5)]
    for own, item in enumerate(reading.items):
        assert item.negative in {text.replace("  ", " ") for row in captions for text in row}
        assert str(own) not in item.negative
    assert image_source(reading.items[4].image) == b"picture rsicd_images/airport_4.jpg"
    assert reading == load("rsicd", tmp_path, seed=1)
    assert reading != load("rsicd", tmp_path, seed=2)
    assert reading.notes == {"images left out: no caption": 1}


def test_rocov2_reads_its_columns_and_both_folder_layouts(tmp_path: Path) -> None:
    names = [f"ROCOv2_test_{k}" for k in range(4)]
    _write_images(
        tmp_path / "default" / "test" / "0000.parquet",
        "image_id",
        names,
        caption=["ct", "mri", "x-ray", "Ct"],
        cui=[[], [], [], []],
    )
    items = load("rocov2", tmp_path).items
    assert [item.id for item in items] == names
    # The same caption in another case is not a negative.
    assert items[0].negative in ("mri", "x-ray")
    assert image_source(items[3].image) == b"picture ROCOv2_test_3"
    with pytest.raises(InputError, match=r"validation-\*\.parquet, found"):
        load("rocov2", tmp_path, split="validation")


def test_retrieval_pairs_need_other_captions() -> None:
    same = [CaptionedImage(str(k), Path(f"{k}.jpg"), ("alike",)) for k in range(3)]
    with pytest.raises(InputError, match="of another image for 0"):
        draw_pairs(same, seed=0)


def test_parquet_files_with_other_columns_are_rejected(tmp_path: Path) -> None:
    _write_images(tmp_path / "test-0.parquet", "name", ["a"])
    with pytest.raises(InputError, match="missing .*filename, captions;"):
        load("rsicd", tmp_path)
    (tmp_path / "test-0.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load("rsicd", tmp_path)
