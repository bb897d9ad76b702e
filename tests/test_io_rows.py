import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msdscore.errors import InputError
from msdscore.rows.files import Row, open_rows
from msdscore.rows.rules import ColumnNames

CAPTIONS = [
    "a dog runs on the beach",
    "犬が走る 🐕‍🦺",
    "كلب يركض على الشاطئ",
    'he said "hi", then\nleft;\ttwice',
    "  e\u0301 and é  ",
]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def jsonl(path: Path, *rows: object) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def rows_of(source: str | Path, **options: Any) -> list[Row]:
    with open_rows(source, **options) as rows:
        found, again = (list(map(plain, rows.read())) for _ in range(2))
        assert again == found
        return found


def plain(row: Row) -> Row:
    """The row with a path instead of its text, and with the message of its error."""
    image = Path(row.image) if isinstance(row.image, str) else row.image
    return row._replace(image=image, error=None if row.error is None else str(row.error))


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).touch()
    return path


def samples() -> list[dict[str, object]]:
    return [{"id": f"r{i}", "image": f"{i}.jpg", "caption": text, "extra": str(i)} for i, text in enumerate(CAPTIONS)]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    return jsonl(path.with_suffix(".jsonl"), *rows)


def write_json(path: Path, rows: list[dict[str, object]]) -> Path:
    return write(path.with_suffix(".json"), json.dumps(rows))


def write_csv(path: Path, rows: list[dict[str, object]]) -> Path:
    return _write_delimited(path.with_suffix(".csv"), rows, ",")


def write_tsv(path: Path, rows: list[dict[str, object]]) -> Path:
    return _write_delimited(path.with_suffix(".tsv"), rows, "\t")


def _write_delimited(path: Path, rows: list[dict[str, object]], delimiter: str) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"), row_group_size=2)
    return path.with_suffix(".parquet")


WRITERS = [write_jsonl, write_json, write_csv, write_tsv, write_parquet]


@pytest.mark.parametrize("writer", WRITERS)
def test_all_formats_yield_the_same_rows(writer, tmp_path):
    rows = rows_of(writer(tmp_path / "rows", samples()))
    assert [row.caption for row in rows] == CAPTIONS
    assert [row.id for row in rows] == ["r0", "r1", "r2", "r3", "r4"]
    assert [row.image for row in rows] == [tmp_path / f"{i}.jpg" for i in range(5)]
    assert [dict(row.columns) for row in rows] == samples()
    assert [row.error for row in rows] == [None] * 5
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
entries = st.lists(st.fixed_dictionaries({"image": text, "caption": text, "note": text}), min_size=1, max_size=8)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=entries)
def test_captions_are_preserved_exactly(writer, tmp_path, rows):
    found = rows_of(writer(tmp_path / "rows", rows))
    assert [dict(row.columns) for row in found] == rows
    for row, given_row in zip(found, rows, strict=True):
        assert row.caption == given_row["caption"]


def test_invalid_json_lines_are_failed_rows(tmp_path):
    lines = [
        b'\xef\xbb\xbf{"image": "a.jpg", "caption": "ok"}\r',
        b"\r",
        b'{"image": "a.jpg", "caption": ',
        b"[1, 2]",
        b"   ",
        b'{"image": "a.jpg", "caption": "\xff"}',
        b'{"image": "a.jpg", "caption": "half \\ud83d"}',
        b"[" * 200_000,
        b'{"n": 1' + b"1" * 5000 + b"}",
        b'{"image": "a.jpg", "caption": "whole \\ud83d\\ude00"}',
    ]
    path = write(tmp_path / "rows.jsonl", b"\n".join(lines))
    rows = rows_of(path)
    reasons = [row.error for row in rows]
    assert reasons[0] is None
    assert reasons[1] == "line 3: not valid JSON (Expecting value at column 30)"
    assert reasons[2] == 'line 4: expected an object such as {"image": …}, got list'
    assert reasons[3] == "line 6: not valid UTF-8"
    assert reasons[4] == "line 7: contains half a surrogate pair, which is not valid Unicode"
    assert rows[4].columns["caption"] == "half \ufffd"
    assert (reasons[5] or "").startswith("line 8: not")
    assert (reasons[6] or "").startswith("line 9: not usable JSON")
    assert reasons[7] is None
    assert rows[7].caption == "whole 😀"
    assert rows[1].id == "1"


def test_rows_without_a_caption_or_an_image_list_the_names_that_are_known(tmp_path):
    rows = rows_of(jsonl(tmp_path / "rows.jsonl", {"image": "a.jpg"}, {"caption": "no image"}))
    assert [row.error for row in rows] == [
        "no caption; expected one of caption, text, candidate, cand, prediction, captions; found: image",
        "no image; expected one of image, image_path, file_name, filename, img; found: caption",
    ]


@pytest.mark.parametrize("image", ["image", "image_path", "file_name", "filename", "img"])
@pytest.mark.parametrize("caption", ["caption", "text", "candidate", "cand"])
def test_column_aliases(tmp_path, image, caption):
    (row,) = rows_of(jsonl(tmp_path / "rows.jsonl", {caption: "a dog", image: "a.jpg"}))
    assert (row.image, row.caption, list(row.columns)) == (tmp_path / "a.jpg", "a dog", [caption, image])


def test_groups_and_ids(tmp_path):
    rows = rows_of(
        jsonl(
            tmp_path / "rows.jsonl",
            {"image": "a.jpg", "caption": "x", "group": 7},
            {"image": "a.jpg", "caption": "x", "group": "", "id": 3},
            {"image": "a.jpg", "caption": "x", "group": None, "id": 4.0},
            {"image": "a.jpg", "caption": "x", "group": "g", "id": "4"},
            {"image": "a.jpg", "caption": "x", "id": 3},
            {"image": "a.jpg", "caption": "x", "id": None},
        )
    )
    assert [row.set for row in rows] == ["group 7", None, None, "group g", None, None]
    assert [row.id for row in rows] == ["0", "3", "4", "4", "3", "5"]
    assert [row.error for row in rows] == [None] * 6  # ids need not be unique: rows are identified by position
    assert len({row.index for row in rows}) == 6


@pytest.mark.parametrize("line", ['{"caption": "a", "image": "a.jpg", "caption": "b"}', '{"image": {"p": 1, "p": 2}}'])
def test_duplicate_keys_are_an_error_of_the_row(tmp_path, line):
    rows = rows_of(write(tmp_path / "rows.jsonl", f'{{"image": "a.jpg", "caption": "x"}}\n{line}\n'))
    assert rows[0].error is None
    assert re.fullmatch(r"line 2: the name '(caption|p)' appears more than once in one object", str(rows[1].error))
    with pytest.raises(InputError, match="more than once .*character 1"):
        rows_of(write(tmp_path / "rows.json", f"[{line}]"))


def test_unusual_csv_is_read(tmp_path):
    path = write(
        tmp_path / "rows.csv",
        b"\xef\xbb\xbfimage,caption,n\r\n"
        b'a.jpg,"two\r\nlines",1\r\n'
        b"\r\n"
        b"a.jpg,short\r\n"
        b"a.jpg,too,many,fields\r\n"
        b"a.jpg,caf\xe9,1\r\n"
        b'a.jpg,"bad"quote,1\r\n'
        b'a.jpg,a "quote" inside,1\r\n'
        b'a.jpg,"never closed,1\r\n',
    )
    rows = rows_of(path)
    assert [row.error for row in rows] == [
        None,
        "line 5: expected 3 fields, got 2",
        "line 6: expected 3 fields, got 4",
        "line 7: not valid UTF-8",
        "line 8: not valid CSV (',' expected after '\"')",
        None,
        "line 10: not valid CSV (unexpected end of data)",
    ]
    assert rows[0].caption == "two\r\nlines"
    assert rows[5].caption == 'a "quote" inside'
    assert open_rows(path).layout.columns == ("image", "caption", "n")


def test_invalid_csv_is_rejected(tmp_path):
    with pytest.raises(InputError, match="same name: image, caption"):
        open_rows(write(tmp_path / "a.csv", "image,caption,image\n"))
    with pytest.raises(InputError, match="caption column; .*found: none"):
        open_rows(write(tmp_path / "b.csv", ""))
    with pytest.raises(InputError, match=r"q\.csv: line 1: not valid CSV"):
        open_rows(write(tmp_path / "q.csv", 'image,"caption'))
    (tmp_path / "utf16.csv").write_bytes("image,caption\n".encode("utf-16"))
    with pytest.raises(InputError, match="csv: line 1: not valid UTF-8"):
        open_rows(tmp_path / "utf16.csv")
    source = open_rows(write(tmp_path / "c.csv", 'image,caption\na.jpg,"' + "x" * 200_000 + '"\n'))
    with pytest.raises(InputError, match="line 2: .*131072 characters"):
        list(source.read())


@pytest.mark.parametrize("writer", WRITERS)
def test_missing_columns_are_reported(writer, tmp_path):
    path = writer(tmp_path / "rows", [{"picture": "a.jpg", "words": "x", "id": "1"}])
    with pytest.raises(InputError, match="caption .*picture, words, id"):
        open_rows(path)
    path = writer(tmp_path / "more", [{"picture": "a.jpg", "caption": "x"}])
    with pytest.raises(InputError, match="no image column"):
        open_rows(path)


LISTED = [
    {"id": 7, "image": "a.jpg", "captions": ["one dog", "two dogs"], "note": "x"},
    {"id": 8, "image": "b.jpg", "captions": [], "note": "y"},
    {"id": 9, "image": "c.jpg", "captions": ["a cat", None, " "], "note": "z"},
]


@pytest.mark.parametrize("writer", [write_jsonl, write_json, write_parquet])
def test_a_list_of_captions_is_one_candidate_set(writer, tmp_path):
    rows = rows_of(writer(tmp_path / "rows", LISTED))
    assert [row.id for row in rows] == ["7#0", "7#1", "8", "9#0", "9#1", "9#2"]
    assert [row.index for row in rows] == list(range(6))
    assert [row.caption for row in rows] == ["one dog", "two dogs", "", "a cat", "", " "]
    assert [row.columns["group"] for row in rows] == ["7", "7", "8", "9", "9", "9"]
    assert [row.set for row in rows] == ["list 0", "list 0", "list 1", "list 2", "list 2", "list 2"]
    assert [row.image for row in rows][:2] == [tmp_path / "a.jpg"] * 2
    assert [row.error for row in rows] == [
        None, None, "captions is empty", None, "captions[1] is empty", "captions[2] is empty",
    ]  # fmt: skip
    assert rows[1].columns == {
        "id": "7#1", "image": "a.jpg", "caption": "two dogs", "note": "x", "group": "7", "candidates": 2,
    }  # fmt: skip
    assert len({row.index for row in rows}) == 6


def test_lists_of_captions_are_separate_sets_whatever_their_ids_are(tmp_path):
    path = jsonl(
        tmp_path / "rows.jsonl",
        {"image": "a.jpg", "captions": ["no id"]},
        {"id": 7, "image": "a.jpg", "captions": ["one"]},
        {"id": "7", "image": "a.jpg", "captions": ["two"]},
        {"image": "a.jpg", "caption": "three", "group": "0"},
        {"image": "a.jpg", "caption": "four", "group": "7"},
    )
    rows = rows_of(path)
    assert [row.columns["group"] for row in rows] == ["@0", "7", "7@2", "0", "7"]
    assert len({row.set for row in rows}) == 5


def test_lists_and_single_captions_can_be_mixed(tmp_path):
    path = jsonl(
        tmp_path / "rows.jsonl",
        {"image": "a.jpg", "captions": ["x", 5], "group": "mine", "candidates": "own"},
        {"image": "b.jpg", "caption": "y", "captions": ["never read"]},
        {"image": "c.jpg", "captions": "z"},
        {"captions": ["no image", "either"]},
    )
    rows = rows_of(path)
    assert [row.id for row in rows] == ["0#0", "0#1", "1", "2", "3#0", "3#1"]
    assert [row.caption for row in rows] == ["x", "", "y", "z", "no image", "either"]
    assert rows[1].error == "captions[1] must be text, got int"
    assert rows[0].columns["candidates"] == "own"
    assert rows[0].set == "group mine"
    assert rows[2].columns["captions"] == ["never read"]
    assert rows[4].error is not None
    assert rows[4].error.startswith("no image")
    named = rows_of(
        jsonl(tmp_path / "b.jsonl", {"image": "a", "texts": ["p", "q"]}), columns=ColumnNames(caption="texts")
    )
    assert [row.columns["texts"] for row in named] == ["p", "q"]


def test_lists_of_captions_in_text_tables_are_rejected(tmp_path):
    path = write_csv(tmp_path / "rows", [{"image": "a.jpg", "captions": "['x', 'y']"}])
    with pytest.raises(InputError, match="captions cannot contain lists"):
        open_rows(path)


def test_image_of_a_list_is_found_by_id(tmp_path):
    folder = folder_of(tmp_path / "images", "42.jpg")
    rows = rows_of(write(tmp_path / "rows.json", '{"42": ["a dog", "a cat"]}'), images=folder)
    assert [(row.id, row.image, row.caption) for row in rows] == [
        ("42#0", folder / "42.jpg", "a dog"),
        ("42#1", folder / "42.jpg", "a cat"),
    ]


COCO = {
    "info": {"year": 2017},
    "images": [{"id": 5, "file_name": "000000000005.jpg", "width": 3}, {"id": 6, "file_name": "6.jpg"}],
    "annotations": [
        {"image_id": 6, "id": 1, "caption": "a dog"},
        {"image_id": 5, "id": 2, "caption": "a cat"},
        {"image_id": 6, "id": 3, "caption": "a small dog"},
    ],
}


@pytest.mark.parametrize("order", [["info", "images", "annotations"], ["annotations", "images", "info"]])
def test_coco_annotations(order, tmp_path):
    folder = folder_of(tmp_path / "images", "6.jpg")
    path = write(tmp_path / "captions.json", json.dumps({name: COCO[name] for name in order}))
    rows = rows_of(path, images=folder)
    assert [(row.id, row.caption) for row in rows] == [("1", "a dog"), ("2", "a cat"), ("3", "a small dog")]
    assert [row.image for row in rows] == [folder / "6.jpg", folder / "000000000005.jpg", folder / "6.jpg"]
    assert [row.set for row in rows] == [None] * 3
    assert rows[0].columns == {"file_name": "6.jpg", "image_id": 6, "id": 1, "caption": "a dog"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"images": []}, "a list 'annotations'"),
        ({"annotations": [], "info": {}}, "a list 'images'"),
        ({"images": [5], "annotations": []}, "under 'images', got int"),
        ({"images": {}, "annotations": []}, "not valid JSON"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": [1], "category_id": 3}]}, "no caption column"),
    ],
)
def test_invalid_coco_annotations_are_rejected(document, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        rows_of(write(tmp_path / "captions.json", json.dumps(document)))


def test_missing_and_unknown_inputs_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        open_rows(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="format 'txt'; .*jsonl, ndjson"):
        open_rows(write(tmp_path / "rows.txt", ""))
    with pytest.raises(InputError, match="unknown input format ''"):
        open_rows(write(tmp_path / "rows", ""))
    with pytest.raises(InputError, match="no such folder of images"):
        open_rows(jsonl(tmp_path / "a.jsonl", {"image": "a", "caption": "b"}), images=tmp_path / "none")
    with pytest.raises(InputError, match="is a folder"):
        open_rows(tmp_path)
    with pytest.raises(InputError, match="cannot be read as a table"):
        open_rows(write(tmp_path / "a.parquet", "PAR1 but not really"))
    assert rows_of(write(tmp_path / "rows", '{"image": "a", "caption": "b"}'), format="jsonl")[0].caption == "b"
    assert rows_of(write(tmp_path / "empty.jsonl", "\n\n")) == []


def test_relative_image_paths(tmp_path):
    images = folder_of(tmp_path / "images")
    path = jsonl(tmp_path / "r.jsonl", {"image": "a.jpg", "caption": "x"}, {"image": "/abs/b.jpg", "caption": "x"})
    assert [row.image for row in rows_of(path)] == [tmp_path / "a.jpg", Path("/abs/b.jpg")]
    assert [row.image for row in rows_of(path, images=images)] == [images / "a.jpg", Path("/abs/b.jpg")]


def test_parquet_images_as_paths_bytes_and_structs(tmp_path):
    kinds = {
        "bytes": pa.array([b"abc", None, b""]),
        "struct": pa.array([{"bytes": b"abc", "path": "a.jpg"}, {"bytes": None, "path": "b.jpg"}, None]),
        "path": pa.array(["a.jpg", "b.jpg", None]).dictionary_encode(),
    }
    found = {}
    for kind, image in kinds.items():
        table = pa.table({"image": image, "caption": ["x", "y", "z"], "other": pa.array([b"\0", b"1", None])})
        pq.write_table(table, tmp_path / f"{kind}.parquet")
        found[kind] = rows_of(tmp_path / f"{kind}.parquet")
    assert [row.image for row in found["bytes"]] == [b"abc", None, None]
    assert [row.image for row in found["struct"]] == [b"abc", tmp_path / "b.jpg", None]
    assert [row.image for row in found["path"]] == [tmp_path / "a.jpg", tmp_path / "b.jpg", None]
    assert [row.columns["image"] for row in found["bytes"]] == [None, None, None]
    assert [row.columns["image"] for row in found["struct"]] == ["a.jpg", "b.jpg", None]
    assert [row.columns["other"] for row in found["bytes"]] == [b"\0", b"1", None]
    assert [row.error for row in found["struct"]] == [None, None, "image is empty"]
    for kind in kinds:
        with open_rows(tmp_path / f"{kind}.parquet") as source:
            assert source.layout.schema is not None
            assert source.layout.schema.field("image").type == pa.string()
            assert source.layout.columns == ("image", "caption", "other")


def test_parquet_text_that_is_not_utf8_is_rejected(tmp_path):
    captions = pa.array([b"fine", b"\xff\xfe", b"good"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"image": ["a", "b", "c"], "caption": captions}), tmp_path / "rows.parquet")
    assert [row.error for row in rows_of(tmp_path / "rows.parquet")] == [
        None,
        "contains text that is not valid UTF-8",
        None,
    ]


@pytest.mark.parametrize("name", ["42.jpg", "42.PNG", "000000000042.webp", "COCO_val2014_000000000042.jpg"])
@pytest.mark.parametrize("key", [42, "42"])
def test_coco_results_find_images_by_number(tmp_path, name, key):
    images = folder_of(tmp_path / "images", name, "420.jpg", "142.jpg", "42.txt", "._42.jpg", "1_42.jpg")
    path = write(tmp_path / "results.json", json.dumps([{"image_id": key, "caption": "a dog"}]))
    (row,) = rows_of(path, images=images)
    assert (row.image, row.error, row.id) == (images / name, None, "0")
    assert row.columns == {"image_id": key, "caption": "a dog"}


def test_ambiguous_coco_images_are_errors(tmp_path):
    images = folder_of(tmp_path / "images", "42.jpg", "COCO_val2014_000000000042.jpg", "7.jpg", "7.png", "x.jpg")
    rows = [{"image_id": key, "caption": "x"} for key in (42, "42", 7, "7", "7.png", 8, "x", None, [1], 7.5, True)]
    found = rows_of(write(tmp_path / "results.json", json.dumps(rows)), images=images)
    assert [row.image and Path(str(row.image)).name for row in found] == [
        None, "42.jpg", None, None, "7.png", None, "x.jpg", None, None, None, None,
    ]  # fmt: skip
    assert found[0].error == f"several images for id 42 in {images}: 42.jpg, COCO_val2014_000000000042.jpg"
    assert found[3].error == f"several images for id 7 in {images}: 7.jpg, 7.png"
    assert found[5].error == f"no image for id 8 in {images}"
    assert found[7].error == "image_id must be text or a whole number, got None"


def test_clipscore_candidates(tmp_path):
    images = folder_of(tmp_path / "images", "a_1.jpg", "b.png", "3.gif")
    path = write(tmp_path / "c.json", '{"b": "a cat",\n "a_1": "a dog", "3": "", "4": "x", "b": "again"}')
    rows = rows_of(path, images=images)
    assert [(row.id, row.caption) for row in rows] == [
        ("b", "a cat"), ("a_1", "a dog"), ("3", ""), ("4", "x"), ("b", "again"),
    ]  # fmt: skip
    assert [row.image and Path(str(row.image)).name for row in rows] == [
        "b.png",
        "a_1.jpg",
        "3.gif",
        None,
        "b.png",
    ]
    assert [row.error for row in rows] == [
        None,
        None,
        "caption is empty",
        f"no image for id 4 in {images}",
        None,
    ]
    assert [row.warning for row in rows] == [None] * 4 + ["the name 'b' appears more than once"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "expected a list of rows"),
        ("7", "expected a list of rows"),
        ('{"42": {"caption": "a"}}', r"got an object under '42'"),
        ('[{"image": "a", "caption": "b"}', "] at character 31, got the end"),
        ('[{"image": "a", "caption": "b"},]', "Expecting value at character 32"),
        ('[{"image": "a" "caption": "b"}]', "not valid JSON"),
        ('[{"image": "a", "caption": "b]', "not valid JSON"),
        ('{"image": "a", "caption": "b"}\n{"image": "a", "caption": "b"}', "JSON lines are named .jsonl"),
        ('{"a": "b" "c"}', "expected , or }"),
        ("{1: 2}", "a name must be text, got 1"),
        (b'[{"image": "a", "caption": "\xff"}]', "not valid UTF-8"),
        ("[" * 100_000, "."),
    ],
)
def test_invalid_json_documents_are_rejected(tmp_path, content, reason):
    path = write(tmp_path / "rows.json", content)
    with pytest.raises(InputError, match=reason):
        list(open_rows(path, images=tmp_path).read())


def test_invalid_items_of_json_lists_are_failed_rows(tmp_path):
    path = write(
        tmp_path / "rows.json",
        '\ufeff [ {"image": "a", "caption": "\\ud800"} , 3, {"image":"a","caption":"b"}]\n ',
    )
    assert [row.error for row in rows_of(path)] == [
        "item 1: contains half a surrogate pair, which is not valid Unicode",
        'item 2: expected an object such as {"image": …}, got int',
        None,
    ]
    assert rows_of(write(tmp_path / "none.json", "[ ]")) == []


def test_json_documents_are_read_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("msdscore.rows.documents._READ", 7)
    rows = [{"image": "a.jpg", "caption": text * 3, "numbers": [12345, 1.5e-7, True]} for text in CAPTIONS]
    found = rows_of(write(tmp_path / "rows.json", json.dumps(rows, ensure_ascii=False, indent=1)))
    assert [dict(row.columns) for row in found] == rows


def test_standard_input_is_read_as_json_lines():
    program = (
        "from msdscore.rows.files import open_rows\n"
        "with open_rows('-') as source:\n"
        "    print(source.total, ascii([(str(row.image), row.caption) for row in list(source.read())[1:]]))\n"
        "print(list(source.read()))"
    )
    data = "".join(json.dumps({"image": f"{i}.jpg", "caption": CAPTIONS[i]}) + "\n" for i in range(2))
    done = subprocess.run([sys.executable, "-c", program], input=data.encode(), capture_output=True, check=False)
    assert done.stdout.decode() == f"2 {[('1.jpg', CAPTIONS[1])]!a}\n"
    assert b"FileNotFoundError" in done.stderr  # closing removed the spooled copy


def test_interrupted_standard_input_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "msdscore", "score", "-", "-o", str(tmp_path / "out.jsonl"), "-e", "toy"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # Not ignored, as Ctrl-C is for tests that a shell runs in the background, and SIGHUP by nohup.
        interruptible = partial(signal.signal, number, signal.SIG_DFL)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, preexec_fn=interruptible
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"\n" * (3 << 20))
            process.stdin.flush()
            until = time.monotonic() + 60
            while time.monotonic() < until and not any(path.stat().st_size for path in tmp_path.glob("*.input")):
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(60) == 128 + number
            assert process.stderr.read() == b"stopped while the rows were read; nothing was written\n"
        assert not list(tmp_path.iterdir())
    small = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-", *command]
    done = subprocess.run(small, input=b"\n" * (3 << 20), stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 2
    assert f"{tmp_path}/msdscore-".encode() in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_spooled(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")

    def feed() -> None:
        (tmp_path / "rows.jsonl").write_text('{"image": "a.jpg", "caption": "x"}\n')

    thread = threading.Thread(target=feed)
    thread.start()
    with open_rows(tmp_path / "rows.jsonl") as source:
        assert [row.image for row in source.read()] == ["a.jpg"]
    thread.join()


def test_an_endless_pipe_is_rejected(monkeypatch):
    monkeypatch.setattr("msdscore.rows.formats._MOST_PIPED", 3 << 20)
    with Path("/dev/zero").open() as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(InputError, match="standard input has more than 3,145,728 bytes"):
            open_rows("-")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("writer", [write_jsonl, write_json, write_csv, write_tsv])
def test_compressed_rows_equal_plain_rows(tmp_path, writer, suffix):
    plain = writer(tmp_path / "rows", samples())
    packed = plain.with_name(plain.name + suffix)
    with pa.output_stream(str(packed), compression="detect") as file:
        file.write(plain.read_bytes())
    assert rows_of(packed) == rows_of(plain)
    assert not list(Path(tempfile.gettempdir()).glob("msdscore-*.input"))


def test_a_damaged_archive_is_a_one_line_error(tmp_path):
    with pytest.raises(InputError, match=r"rows\.jsonl\.gz: .*as gzip"):
        open_rows(write(tmp_path / "rows.jsonl.gz", b"no archive at all"))
    with pytest.raises(InputError, match=r"txt\.zst: .*format 'txt'"):
        open_rows(write(tmp_path / "rows.txt.zst", b""))


@pytest.mark.parametrize("writer", WRITERS)
def test_columns_by_name(tmp_path, writer):
    rows = [{"Nr": "7", "Photo": "a.jpg", "image": "wrong.jpg", "Sentence": "a dog", "caption": "wrong"}]
    path = writer(tmp_path / "rows", rows)
    names = ColumnNames(image="photo", caption="Sentence", id="nr")
    (row,) = rows_of(path, columns=names)
    assert (row.id, row.image, row.caption) == ("7", Path(_in_folder(path), "a.jpg"), "a dog")
    assert dict(row.columns) == rows[0]
    with pytest.raises(InputError, match="'sentense'.*'Sentence'"):
        open_rows(path, columns=ColumnNames(caption="sentense"))


def _in_folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def test_a_spreadsheet_is_rejected_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"rows\.xlsx: a spreadsheet; save it as \.csv"):
        open_rows(write(tmp_path / "rows.xlsx", b"PK"))


def test_duplicate_coco_image_ids_are_rejected(tmp_path):
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    document = {"images": images, "annotations": [{"image_id": 1, "caption": "x"}]}
    (row,) = rows_of(write(tmp_path / "same.json", json.dumps(document)))
    assert row.columns["file_name"] == "a.jpg"
    images.append({"id": "1", "file_name": "c.jpg"})
    with pytest.raises(InputError, match=r"id 1 \('a\.jpg' and 'c\.jpg'"):
        rows_of(write(tmp_path / "twice.json", json.dumps(document)))


@pytest.mark.parametrize("depth", [64, 200, 900])
def test_deeply_nested_values_become_text(tmp_path, depth):
    deep = "[" * depth + "]" * depth
    line = f'{{"image": "a.jpg", "caption": "x", "extra": {deep}, "flat": [1]}}'
    for name, text in (("rows.jsonl", line), ("rows.json", f"[{line}]")):
        (row,) = rows_of(write(tmp_path / name, text))
        assert row.error is None
        assert row.columns["flat"] == [1]
        assert row.columns["extra"] == deep
    document = f'{{"images": [], "annotations": [{line}]}}'
    assert rows_of(write(tmp_path / "coco.json", document))[0].columns["extra"] == deep


def test_too_long_line_is_a_failed_row(tmp_path, monkeypatch):
    for module in ("formats", "documents"):
        monkeypatch.setattr(f"msdscore.rows.{module}.LONGEST", 200)
    long = '{"image": "b.jpg", "caption": "' + "y" * 900 + '"}'
    lines = ['{"image": "a.jpg", "caption": "x"}', long, '{"image": "c.jpg", "caption": "z"}', long]
    rows = rows_of(write(tmp_path / "rows.jsonl", "\n".join(lines)))
    assert [row.caption for row in rows] == ["x", "", "z", ""]
    assert re.match(
        r"line 2: more than [\d,]+ bytes in one row; expected an image and its captions", str(rows[1].error)
    )
    with pytest.raises(InputError, match="bytes in one row.*character 37"):
        rows_of(write(tmp_path / "rows.json", f"[{lines[0]}, {long[:-2]}"))
    with pytest.raises(InputError, match="csv: line 2: .*in one row"):
        rows_of(write(tmp_path / "rows.csv", "image,caption\na.jpg," + "y" * 900))


def test_decompression_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("msdscore.rows.formats._MAX_BYTES", 1 << 20)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (8 << 20)))
    with pytest.raises(InputError, match=r"\.gz: .*1,048,576 bytes, 100 "):
        rows_of(path)
    assert not list(Path(tempfile.gettempdir()).glob("msdscore-*.input"))
