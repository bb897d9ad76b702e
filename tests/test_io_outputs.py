import csv
import datetime
import json
import math

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msdscore.errors import ConfigError, RunError
from msdscore.io.tables import OUTPUT_SUFFIXES, conform, table_from_columns, unified, write_table
from msdscore.io.targets import check_manifest, check_target, is_same_file, put_all
from msdscore.rows.files import open_rows

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.fixed_dictionaries(
    {
        "image": text,
        "caption": text,
        "msd": st.none() | st.floats(),
        "count": st.none() | st.integers(-(2**63), 2**63 - 1),
        "tags": st.none() | st.lists(text, max_size=3),
    }
)
SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("caption", pa.string()),
        ("msd", pa.float64()),
        ("count", pa.int64()),
        ("tags", pa.list_(pa.string())),
    ]
)
ROUND_TRIP = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def finite(row: dict[str, object]) -> dict[str, object]:
    score = row["msd"]
    return {**row, "msd": score if isinstance(score, float) and math.isfinite(score) else None}


@ROUND_TRIP
@given(rows=st.lists(values, max_size=6))
def test_json_lines_round_trip(tmp_path, rows):
    path = tmp_path / "out.jsonl"
    write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, overwrite=True)
    lines = path.read_bytes().decode("utf-8").split("\n")
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines if line] == [finite(row) for row in rows]
    write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "out.json", overwrite=True)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == [finite(row) for row in rows]


@ROUND_TRIP
@given(rows=st.lists(values, min_size=1, max_size=6))
def test_csv_round_trip(tmp_path, rows):
    path = tmp_path / "out.csv"
    write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, overwrite=True)
    with path.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file, strict=True))
    assert [(row["image"], row["caption"]) for row in read] == [(row["image"], row["caption"]) for row in rows]
    for found, row in zip(read, rows, strict=True):
        assert repr(float(found["msd"]) if found["msd"] else None) == repr(row["msd"])
        assert (int(found["count"]) if found["count"] else None) == row["count"]
        assert (json.loads(found["tags"]) if found["tags"] else None) == row["tags"]
    assert [row.columns["caption"] for row in open_rows(path).read()] == [row["caption"] for row in rows]


@ROUND_TRIP
@given(rows=st.lists(values, max_size=6))
def test_parquet_round_trip(tmp_path, rows):
    path = tmp_path / "out.parquet"
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    write_table(table, path, metadata={"msdscore": "msd|enc:toy"}, overwrite=True)
    read = pq.read_table(path)
    assert repr(read.to_pylist()) == repr(table.to_pylist())
    assert read.schema.metadata[b"msdscore"] == b"msd|enc:toy"


def test_csv_distinguishes_null_from_empty_text(tmp_path):
    write_table(pa.table({"a": ["", None, "x"], "b": ["1", "2", "3"]}), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == b'a,b\n"",1\n,2\nx,3\n'
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    read = pyarrow.csv.read_csv(tmp_path / "out.csv", convert_options=options)
    assert read.column("a").to_pylist() == ["", None, "x"]
    write_table(pa.table({"a": [None, "x"]}), tmp_path / "one.csv")
    assert (tmp_path / "one.csv").read_text() == 'a\n""\nx\n'


def test_values_without_a_json_type(tmp_path):
    table = pa.table(
        {
            "when": [datetime.datetime(2024, 1, 2, 3, 4, 5)],
            "raw": [b"\x00\xff"],
            "nested": [{"a": [1.0, math.nan, math.inf], "b": "é"}],
            "flag": [True],
        }
    )
    write_table(table, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == (
        '{"when": "2024-01-02T03:04:05", "raw": "AP8=", "nested": {"a": [1.0, null, null], "b": "é"}, "flag": true}\n'
    )
    write_table(table.select(["when", "raw", "flag"]), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "when,raw,flag\n2024-01-02T03:04:05,AP8=,true\n"


def test_unknown_suffixes_and_unwritable_paths_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"out\.txt: .*\.parquet, \.csv"):
        write_table(pa.table({"a": [1]}), tmp_path / "out.txt")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/out\.csv: cannot be"):
        write_table(pa.table({"a": [1]}), tmp_path / "file" / "out.csv")
    (tmp_path / "file").unlink()
    for suffix in OUTPUT_SUFFIXES:
        write_table(pa.table({"a": [1]}), tmp_path / f"out{suffix.upper()}")
    assert len(list(tmp_path.iterdir())) == len(OUTPUT_SUFFIXES)


def test_failed_write_preserves_the_old_file(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    broken = pa.table({"a": pa.array([b"\xff"]).view(pa.string())})  # bytes cannot be written as JSON
    with pytest.raises(UnicodeDecodeError):
        write_table(broken, path, overwrite=True)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_empty_columns_become_text(tmp_path):
    write_table(pa.table({"a": pa.nulls(2), "b": [1, 2]}), tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").field("a").type == pa.string()


def test_tables_from_columns_of_any_type():
    rows = [
        {"id": 1, "n": 1, "big": 2**70, "empty": {}, "tags": [], "null": None},
        {"id": "a", "n": 2.5, "big": 1, "empty": {}, "tags": ["x"], "null": None},
        {},
    ]
    table = table_from_columns(rows)
    assert table.to_pydict() == {
        "id": ["1", "a", None],
        "n": [1.0, 2.5, None],
        "big": [str(2**70), "1", None],
        "empty": ["{}", "{}", None],
        "tags": [[], ["x"], None],
        "null": [None, None, None],
    }
    typed = table_from_columns(rows, pa.schema([("n", pa.float32()), ("id", pa.int64()), ("gone", pa.int8())]))
    assert typed.schema.names == ["n", "id", "gone", "big", "empty", "tags", "null"]
    assert [typed.schema.field(name).type for name in ("n", "id", "gone")] == [
        pa.float32(),
        pa.string(),
        pa.int8(),
    ]


def test_parts_with_different_types_are_unified():
    parts = [
        table_from_columns([{"id": 1, "s": {"a": 1}, "tags": [], "x": None, "n": 1, "wide": 2**60 + 1}]),
        table_from_columns([{"id": "b", "s": {"a": 1, "b": "t"}, "tags": ["t"], "n": 0.5, "wide": 0.5, "late": True}]),
    ]
    schema = unified([part.schema for part in parts])
    merged = pa.concat_tables([conform(part, schema) for part in parts])
    assert merged.to_pydict() == {
        "id": ["1", "b"],
        "s": [{"a": 1, "b": None}, {"a": 1, "b": "t"}],
        "tags": [[], ["t"]],
        "x": [None, None],
        "n": [1.0, 0.5],
        "wide": [str(2**60 + 1), "0.5"],
        "late": [None, True],
    }


def test_existing_output_is_not_replaced(tmp_path):
    path, other = tmp_path / "out.csv", pa.table({"a": [2]})
    write_table(pa.table({"a": [1]}), path)
    write_table(pa.table({"a": [1]}), path)  # the same content again
    with pytest.raises(RunError, match=r"out\.csv: exists with other"):
        write_table(other, path)
    assert path.read_text() == "a\n1\n"
    write_table(other, path, overwrite=True)
    assert path.read_text() == "a\n2\n"
    (tmp_path / "out.csv.run.json").write_text('{"made_by": "msdscore", "manifest": {}}')
    with pytest.raises(RunError, match=r"out\.csv: is the output"):
        write_table(other, path)
    write_table(other, path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.csv"]


def test_input_is_rejected_as_output(tmp_path):
    image, link, hard = tmp_path / "dog.png", tmp_path / "link.png", tmp_path / "hard.png"
    image.write_bytes(b"pixels")
    link.symlink_to(image)
    hard.hardlink_to(image)
    for name in (image, link, hard, tmp_path / "." / "dog.png"):
        with pytest.raises(RunError, match="is an input of this command"):
            check_target(name, [".png"], inputs=[None, "-", "no\0name", image])
    check_target(tmp_path / "new.PNG", [".png"], inputs=[image])
    with pytest.raises(ConfigError, match=r"new\.jpg: .*\.png, \.svg"):
        check_target(tmp_path / "new.jpg", [".png", ".svg"])
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        check_target(tmp_path / "folder.png", [".png"])


def test_several_files_are_written_all_or_none(tmp_path):
    (tmp_path / "b.md").write_text("mine")
    files = {tmp_path / "deep" / "a.json": b"1", tmp_path / "b.md": b"2"}
    with pytest.raises(RunError, match=r"b\.md: exists"):
        put_all(files)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.md"]
    put_all(files, overwrite=True)
    assert [path.read_bytes() for path in files] == [b"1", b"2"]


def test_only_an_existing_input_is_the_same_file(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert is_same_file(tmp_path / "link", tmp_path / "a")
    assert is_same_file(tmp_path / "new", tmp_path / "folder" / ".." / "new")
    for other in (tmp_path / "missing", tmp_path / "new", "a\0b", None, "-"):
        assert not is_same_file(tmp_path / "a", other)


def test_differences_of_long_settings_are_shortened(tmp_path):
    for size, told in ((58, "x" * 58), (59, "x" * 56 + "...")):
        with pytest.raises(RunError, match="another a.b ") as raised:
            check_manifest(tmp_path, {"a": {"b": "x" * size}}, {"a": {"b": 1}})
        assert f'("{told}' in str(raised.value)
        assert "now 1)" in str(raised.value)
    with pytest.raises(RunError, match=r"another c \(nothing, now 2\)"):
        check_manifest(tmp_path, {"a": 1}, {"a": 1, "c": 2})


@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.int64())])])
def test_fractions_next_to_large_integers_are_not_truncated(schema):
    values = table_from_columns([{"a": 0.5}, {"a": 1 << 60}], schema)["a"].to_pylist()
    assert values == ["0.5", str(1 << 60)]
