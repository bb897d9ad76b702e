"""Runs over files: order of rows, resume after crashes, images read once."""

import csv
import json
import math
import os
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from counting import Counted, CountingEncoder
from msdscore import Paper, Scorer
from msdscore.errors import RunError
from msdscore.forms.registry import added
from msdscore.io.tables import write_table
from msdscore.rows.files import Row, open_rows
from msdscore.rows.formats import open_records
from msdscore.run.options import RunOptions
from msdscore.run.parts import FIRST_ROWS, Plan
from msdscore.run.rows import score_file
from tar_shards import write_tar

COLUMNS = added(Paper)

COLOURS = ["red", "green", "blue", "white", "black"]


def make_input(folder, rows=40, name="rows.jsonl"):
    for colour in COLOURS:
        Image.new("RGB", (48, 32), colour).save(folder / f"{colour}.png")
    lines = [
        {"image": f"{COLOURS[i % 5]}.png", "caption": f"a {COLOURS[i * 7 % 5]} square number {i}", "id": f"r{i}", "system": i % 2}
        for i in range(rows)
    ]  # fmt: skip
    path = folder / name
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path, lines


def run(scorer, path, output, **options):
    with open_rows(path) as source:
        progress = options.pop("progress", lambda done, total: None)
        return score_file(scorer.pipeline, source, output, RunOptions(**options), progress=progress)


def test_rows_have_their_order_and_columns_and_equal_the_scorer(tmp_path):
    path, lines = make_input(tmp_path)
    output = tmp_path / "out.parquet"
    summary = run(Scorer("toy"), path, output, part_rows=7)
    assert (summary.rows, summary.failed) == (40, 0)
    table = pq.read_table(output)
    assert table.column_names == ["image", "caption", "id", "system", *COLUMNS]
    assert table.column("id").to_pylist() == [line["id"] for line in lines]
    rows = table.to_pylist()
    for colour in COLOURS:
        mine = [row for row in rows if row["image"] == f"{colour}.png"]
        scores = Scorer("toy").rank(tmp_path / f"{colour}.png", [row["caption"] for row in mine])
        for row, score in zip(mine, scores, strict=True):
            assert {name: row[name] for name in COLUMNS} == score.row()


def test_repeated_images_are_encoded_once(tmp_path):
    path, _ = make_input(tmp_path)
    encoder = CountingEncoder()
    run(Scorer(encoder), path, tmp_path / "out.parquet", part_rows=3)
    assert sum(encoder.images) == len(COLOURS)


def test_resume_gives_identical_bytes(tmp_path):
    path, _ = make_input(tmp_path)
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    run(Scorer("toy"), path, whole, part_rows=8)
    with pytest.raises(KeyboardInterrupt):
        run(Scorer(CountingEncoder(stop_after=2)), path, broken, part_rows=8)
    assert not broken.exists()
    rest = CountingEncoder()
    run(Scorer(rest), path, broken, part_rows=8)
    assert sum(rest.images) == 3
    assert broken.read_bytes() == whole.read_bytes()


def test_changed_input_or_settings_are_rejected(tmp_path):
    path, _ = make_input(tmp_path)
    output = tmp_path / "out.parquet"
    run(Scorer("toy"), path, output)
    with pytest.raises(RunError, match=r"kappa \(20\.0, now 30\.0\)"):
        run(Scorer("toy", Paper(kappa=30.0)), path, output)
    path.write_text(path.read_text().replace("number 3", "number three"))
    with pytest.raises(RunError, match="its input was changed"):
        run(Scorer("toy"), path, output)
    assert run(Scorer("toy"), path, output, overwrite=True).rows == 40


def test_an_empty_input_gives_an_empty_output(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("image,caption\n")
    assert run(Scorer("toy"), path, tmp_path / "out.parquet").rows == 0
    assert set(COLUMNS) <= set(pq.read_table(tmp_path / "out.parquet").column_names)


def test_input_without_readable_rows_has_an_error_per_row(tmp_path):
    for name, content in (("a.jsonl", b"no\n[1]\n"), ("b.csv", b'image,caption\nx,"never closed\ny,z\n')):
        (tmp_path / name).write_bytes(content)
        summary = run(Scorer("toy"), tmp_path / name, tmp_path / f"{name}.parquet")
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert summary.failed == summary.rows == len(table) > 0
        assert table.column_names[0] == "id"
        assert all("not valid" in error or "expected an object" in error for error in table["error"].to_pylist())


def test_progress_counts_up_to_the_number_of_rows(tmp_path):
    path, _ = make_input(tmp_path)
    seen = []
    run(Scorer("toy"), path, tmp_path / "o.parquet", part_rows=8, progress=lambda *counts: seen.append(counts))
    assert (seen[0], seen[-1]) == ((0, 40), (40, 40))
    assert seen == sorted(seen)


def read_rows(output):
    with ExitStack() as stack:
        return [record.values for record in open_records(output, format=None, until=stack).read()]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_finished_run_with_a_changed_image_is_only_scored_again_with_overwrite(tmp_path, suffix):
    path, _ = make_input(tmp_path)
    output, clean = tmp_path / f"out{suffix}", tmp_path / f"clean{suffix}"
    run(Scorer("toy"), path, output, part_rows=8)
    Image.new("RGB", (48, 32), "orange").save(tmp_path / "red.png")
    with pytest.raises(RunError, match="image files were changed after they were scored"):
        run(Scorer("toy"), path, output, part_rows=8)
    made = run(Scorer("toy"), path, output, part_rows=8, overwrite=True)
    assert (made.scored, made.earlier) == (40, 0)
    run(Scorer("toy"), path, clean, part_rows=8)
    assert output.read_bytes() == clean.read_bytes()
    assert run(Scorer("toy"), path, output, part_rows=8).scored == 0


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_worst_words_column(tmp_path, suffix):
    path, lines = make_input(tmp_path)
    scorer, output = Scorer("toy"), tmp_path / f"out.{suffix}"
    run(scorer, path, output, part_rows=8, worst=2)

    def words():
        with ExitStack() as stack:
            rows = [record.values for record in open_records(output, format=None, until=stack).read()]
        assert list(rows[0]).index("worst_words") == list(rows[0]).index("warnings") - 1
        return [json.loads(row["worst_words"]) if suffix == "csv" else row["worst_words"] for row in rows]

    first = words()
    explained = [scorer.explain(tmp_path / line["image"], line["caption"]).ranked[:2] for line in lines[:6]]
    assert first[:6] == [[word.text for word in ranked] for ranked in explained]
    with pytest.raises(RunError, match="worst_words"):
        run(scorer, path, output, part_rows=8)


def test_resumed_run_detects_a_changed_image(tmp_path):
    path, _ = make_input(tmp_path)
    output, clean = tmp_path / "out.jsonl", tmp_path / "clean.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(Scorer(CountingEncoder(stop_after=3)), path, output, part_rows=8)
    Image.new("RGB", (48, 32), "orange").save(tmp_path / "red.png")
    rest = CountingEncoder()
    run(Scorer(rest), path, output, part_rows=8)
    assert sum(rest.images) == 3  # two unscored images, and the changed one
    run(Scorer("toy"), path, clean, part_rows=8)
    assert output.read_bytes() == clean.read_bytes()


def test_an_interrupted_run_retries_only_parts_with_failed_rows(tmp_path):
    path, _ = make_input(tmp_path)
    (tmp_path / "red.png").write_bytes(b"not an image")
    with pytest.raises(KeyboardInterrupt):
        run(Scorer(CountingEncoder(stop_after=2)), path, tmp_path / "out.parquet", part_rows=8)
    rest = CountingEncoder()
    made = run(Scorer(rest), path, tmp_path / "out.parquet", part_rows=8, retry=True)
    assert (made.earlier, made.failed, sum(rest.images)) == (16, 8, len(COLOURS) - 3)


def test_failed_rows_are_retried_when_the_cause_is_fixed(tmp_path):
    path, _ = make_input(tmp_path)
    whole, output = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    run(Scorer("toy"), path, whole, part_rows=8)
    (tmp_path / "red.png").rename(tmp_path / "away.png")
    (tmp_path / "blue.png").write_bytes(b"not an image")
    first = run(Scorer("toy"), path, output, part_rows=8)
    assert first.failed == 16
    assert [reason[:6] for reason in first.reasons] == ["row 0:", "row 2:", "row 5:"]
    assert "red.png: no such file" in first.reasons[0]
    idle = CountingEncoder()
    assert run(Scorer(idle), path, output, part_rows=8).reasons == first.reasons
    assert sum(idle.images) == 0  # nothing changed: no retry
    (tmp_path / "away.png").rename(tmp_path / "red.png")
    with pytest.raises(RunError, match="image files were changed"):
        run(Scorer(idle), path, output, part_rows=8)
    again = run(Scorer(idle), path, output, part_rows=8, retry=True)
    assert (again.failed, again.scored) == (8, 40)
    Image.new("RGB", (48, 32), "blue").save(tmp_path / "blue.png")
    assert run(Scorer("toy"), path, output, part_rows=8, retry=True).failed == 0
    assert pq.read_table(output).equals(pq.read_table(whole))


@pytest.mark.parametrize("present", [range(0, 20, 2), ()])
def test_images_found_by_id_may_be_added_later(tmp_path, present):
    make_input(tmp_path)
    folder = tmp_path / "images"
    folder.mkdir()
    rows = [{"image_id": i % 20, "caption": f"number {i}"} for i in range(60)]
    path, output = tmp_path / "ids.json", tmp_path / "out.jsonl"
    path.write_text(json.dumps(rows))
    for i in present:
        Image.new("RGB", (32, 32), (9 * i, 0, 0)).save(folder / f"{i}.png")

    def score(target, **options):
        with open_rows(path, images=folder) as source:
            return score_file(Scorer("toy").pipeline, source, target, RunOptions(part_rows=6, **options))

    assert score(output).failed == 60 - 3 * len(present)
    for i in (3, 17):
        Image.new("RGB", (32, 32), (0, 9 * i, 0)).save(folder / f"{i}.png")
    with pytest.raises(RunError, match="image files were changed"):
        score(output)
    assert score(output, retry=True).failed == 54 - 3 * len(present)
    score(tmp_path / "clean.jsonl")
    assert output.read_bytes() == (tmp_path / "clean.jsonl").read_bytes()


def test_a_finished_run_is_not_repeated_and_does_not_load_the_encoder(tmp_path):
    path, _ = make_input(tmp_path)
    output, spec = tmp_path / "out.parquet", Counted(encoder="toy")
    before = Counted.builds
    with open_rows(path) as source:
        first, written = score_file(spec, source, output), output.stat().st_mtime_ns
        again = score_file(spec, source, output)
        assert (again.rows, again.scored, again.earlier, again.signature) == (40, 0, 40, first.signature)
        assert (Counted.builds, output.stat().st_mtime_ns) == (before + 1, written)
        with pytest.raises(RunError, match="kappa"):  # the encoder is needed to report the difference
            score_file(replace(spec, changes={"kappa": 30.0}), source, output)
    Image.new("RGB", (48, 32), "orange").save(tmp_path / "red.png")
    with open_rows(path) as source, pytest.raises(RunError, match="image files were changed"):
        score_file(spec, source, output)


def test_a_finished_run_with_failed_rows_loads_the_encoder_only_to_retry(tmp_path):
    path, _ = make_input(tmp_path)
    (tmp_path / "red.png").unlink()
    output, spec = tmp_path / "out.parquet", Counted(encoder="toy")
    before = Counted.builds
    with open_rows(path) as source:
        first = score_file(spec, source, output)
        again = score_file(spec, source, output)
        assert (again.failed, again.scored, again.reasons) == (first.failed, 0, first.reasons)
        assert Counted.builds == before + 1
        score_file(spec, source, output, RunOptions(retry=True))
        assert Counted.builds == before + 2


ODD = [
    {"image": "red.png", "caption": "red", "msd": 7, "error": "mine", "n": 2**63, "mixed": 1, "box": {"x": 1}},
    {"image": "red.png", "caption": "blue", "length": "long", "n": 1, "mixed": "one", "box": {"y": [1, None]}},
    {"image": "red.png", "caption": "green", "n": 2**53 + 1, "mixed": 0.5, "flag": True, "input_msd": "also mine"},
]


def test_json_rows_preserve_all_values(tmp_path):
    make_input(tmp_path)
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(map(json.dumps, ODD)))
    for suffix in (".jsonl", ".json"):
        made = run(Scorer("toy"), path, tmp_path / f"out{suffix}")
        assert made.renamed == {"error": "input_error", "length": "input_length", "msd": "input_input_msd"}
        for row, given in zip(read_rows(tmp_path / f"out{suffix}"), ODD, strict=True):
            kept = {name: value for name, value in row.items() if name not in COLUMNS and name != "id"}
            assert kept == {made.renamed.get(name, name): value for name, value in given.items()}
            assert list(kept) == [made.renamed.get(name, name) for name in given]
            assert isinstance(row["msd"], float)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv"])
def test_clashing_columns_are_renamed(tmp_path, suffix):
    make_input(tmp_path)
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(map(json.dumps, ODD)))
    run(Scorer("toy"), path, tmp_path / f"out{suffix}")
    rows = read_rows(tmp_path / f"out{suffix}")
    assert [str(row["n"]) for row in rows] == [str(2**63), "1", str(2**53 + 1)]
    assert [row["mixed"] for row in rows] == ["1", "one", "0.5"]
    assert rows[0]["input_error"] == "mine"
    assert not rows[0]["error"]
    assert str(rows[0]["input_input_msd"]) == "7"
    assert rows[2]["input_msd"] == "also mine"


def test_clashing_column_of_a_later_row_is_renamed_and_reported(tmp_path):
    make_input(tmp_path)
    path, output = tmp_path / "late.jsonl", tmp_path / "out.jsonl"
    plain = [{"image": "red.png", "caption": f"red {i}", **({"msd": i} if i == 0 else {})} for i in range(40)]
    plain[30] |= {"error": "mine", "input_msd": "also mine"}
    path.write_text("\n".join(map(json.dumps, plain)))
    for again in (False, True):
        result = run(Scorer("toy"), path, output)
        assert result.renamed == {"error": "input_error", "msd": "input_input_msd"}, f"again: {again}"
    rows = read_rows(output)
    assert (rows[0]["input_input_msd"], rows[30]["input_msd"], rows[30]["input_error"]) == (0, "also mine", "mine")


@pytest.mark.parametrize(
    ("given", "expected"),
    [([7, None, None], [7, 1, 2]), (["a", None, ""], ["a", "1", "2"]), ([None, None, None], ["0", "1", "2"])],
)
def test_rows_without_id_get_their_index(tmp_path, given, expected):
    make_input(tmp_path)
    rows = [
        {**({} if i == 1 or name is None else {"id": name}), "image": "red.png", "caption": "red"}
        for i, name in enumerate(given)
    ]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\nnot json\n")
    run(Scorer("toy"), path, tmp_path / "out.jsonl")
    last = 3 if isinstance(expected[0], int) else "3"
    assert [row["id"] for row in read_rows(tmp_path / "out.jsonl")] == [*expected, last]
    table = pa.table({"id": given, "image": ["red.png"] * 3, "caption": ["red"] * 3})
    if given[0] is not None:
        pq.write_table(table, tmp_path / "some.parquet")
        run(Scorer("toy"), tmp_path / "some.parquet", tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == expected


def test_nan_and_infinity_of_the_input_are_null_in_json(tmp_path):
    make_input(tmp_path)
    lines = ['{"image": "red.png", "caption": "Infinity pool", "loss": NaN, "box": [1, -Infinity]}']
    lines += [
        '{"image": "red.png", "caption": "a", "loss": -1E+999}',
        '{"image": "red.png", "caption": "b", "loss": 1e308}',
    ]
    (tmp_path / "odd.jsonl").write_text("\n".join(lines))
    (tmp_path / "odd.json").write_text(f"[{','.join(lines)}]")
    columns = {"image": ["red.png"] * 3, "caption": ["red"] * 3, "loss": [math.nan, -math.inf, 1e308]}
    pq.write_table(pa.table(columns | {"box": [[1.0, -math.inf], [], None]}), tmp_path / "odd.parquet")
    for name in ("odd.jsonl", "odd.json", "odd.parquet"):
        run(Scorer("toy"), tmp_path / name, tmp_path / f"{name}.out.jsonl")
        rows = read_rows(tmp_path / f"{name}.out.jsonl")
        assert [row["loss"] for row in rows] == [None, None, 1e308]
        assert rows[0]["box"] == [1, None]
    (tmp_path / "odd.csv").write_text("image,caption,loss\nred.png,red,1e999\n")
    run(Scorer("toy"), tmp_path / "odd.csv", tmp_path / "text.jsonl")
    assert read_rows(tmp_path / "text.jsonl")[0]["loss"] == "1e999"  # text is not changed


def test_parquet_preserves_column_types_also_of_times_that_python_lacks(tmp_path):
    _, rows = make_input(tmp_path, rows=3)
    nanoseconds, far = pa.array([1_700_000_000_123_456_789, None, 7]), pa.array([2**45, None, 7])
    columns = {
        "when": nanoseconds.cast(pa.timestamp("ns")),
        "zoned": nanoseconds.cast(pa.timestamp("ns", tz="Europe/Zurich")),
        "took": nanoseconds.cast(pa.duration("ns")),
        "clock": pa.array([1_123_456_789, None, 7]).cast(pa.time64("ns")),
        "day": pa.array([2**31 - 1, None, 7], pa.int32()).cast(pa.date32()),
        **{
            f"far {kind}": far.cast(kind)
            for kind in (pa.timestamp("ms"), pa.timestamp("s", tz="UTC"), pa.duration("s"))
        },
        "n": pa.array([2**64 - 1, None, 7], pa.uint64()),
        "large": pa.array(["a", None, "b"], pa.large_string()),
        "msd": pa.array([0.5, None, 1.0], pa.float32()),
    }
    table = pa.Table.from_pylist(rows)
    for name, values in columns.items():
        table = table.append_column(name, values)
    pq.write_table(table, tmp_path / "typed.parquet")
    for suffix in ("parquet", "csv", "jsonl"):
        assert run(Scorer("toy"), tmp_path / "typed.parquet", tmp_path / f"out.{suffix}").failed == 0
    table, output = pq.read_table(tmp_path / "typed.parquet"), pq.read_table(tmp_path / "out.parquet")
    for name in columns:
        written = output["input_msd" if name == "msd" else name]
        assert (written.type, written) == (table[name].type, table[name])
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["when"] == "2023-11-14 22:13:20.123456789"


def test_warnings_are_written_and_reported_again_by_a_finished_run(tmp_path):
    make_input(tmp_path)
    rows = [{"image": f"{colour}.png", "caption": colour, "group": "a"} for colour in ("red", "blue")]
    rows.append({"image": "red.png", "caption": "a red square"})
    path, output = tmp_path / "groups.jsonl", tmp_path / "out.csv"
    path.write_text("\n".join(map(json.dumps, rows)))
    made, again = run(Scorer("toy"), path, output), run(Scorer("toy"), path, output)
    assert made.warned == 2
    assert made.warnings[0].startswith("row 0: its group holds several images")
    assert (again.scored, again.warned, again.warnings) == (0, 2, made.warnings)
    first, *_, last = csv.DictReader(output.read_text().splitlines())
    assert (first["warnings"][:9], last["warnings"]) == ("its group", "")


def test_windows_of_rows_grow():
    read = []

    def rows():
        for number in range(9000):
            read.append(number)
            yield Row(b"%d" % (number % 3000), "a caption", None, None, str(number), {}, index=number)

    parts = iter(Plan(rows(), part_rows=256, window_rows=4000))
    assert next(parts).number == 0
    assert len(read) == FIRST_ROWS
    later = list(parts)
    assert sum(len(part.rows) for part in later) == 9000 - 256
    # Rows 3072 to 7071 are one window.
    assert max(len(part.rows) / len({row.image for row in part.rows}) for part in later) == 2


def replace_input(path, how):
    lines = path.read_text().splitlines()
    if how == "reversed":
        lines.reverse()
    elif how == "inserted":
        lines.insert(3, lines[0].replace("r0", "new"))
    elif how == "edited":
        lines[5] = lines[5].replace("square", "circle")
    elif how == "cut":
        lines.pop()
    other = path.with_name("other")
    other.write_text("\n".join(lines))
    if how == "edited":
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)


@pytest.mark.parametrize("how", ["reversed", "inserted", "edited", "cut"])
@pytest.mark.parametrize("moment", ["scoring", "assembling"])
def test_input_changed_during_a_run_is_rejected_and_parts_are_saved(tmp_path, monkeypatch, how, moment):
    path, _ = make_input(tmp_path)
    output, original = tmp_path / "out.jsonl", path.read_bytes()
    replaced = []

    def replace_once(done, total):
        if done >= (8 if moment == "scoring" else total) and not replaced:
            replaced.append(done)
            replace_input(path, how)

    with pytest.raises(RunError, match=r"rows\.jsonl: was changed or touched while"):
        run(Scorer("toy"), path, output, part_rows=8, progress=replace_once)
    assert not output.exists()
    with pytest.raises(RunError, match="its input was changed"):
        run(Scorer("toy"), path, output, part_rows=8)
    path.write_bytes(original)
    rest = CountingEncoder()
    run(Scorer(rest), path, output, part_rows=8)
    assert sum(rest.images) == 0
    run(Scorer("toy"), path, tmp_path / "clean.jsonl", part_rows=8)
    assert output.read_bytes() == (tmp_path / "clean.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["rows.csv", "rows.json", "rows.parquet"])
def test_other_formats_changed_during_a_run_are_rejected(tmp_path, name):
    _, lines = make_input(tmp_path)
    path, output = tmp_path / name, tmp_path / "out.parquet"

    def write(rows):
        table = pa.Table.from_pylist(rows)
        (tmp_path / "next").mkdir(exist_ok=True)
        write_table(table, tmp_path / "next" / name, overwrite=True)
        (tmp_path / "next" / name).replace(path)

    write(lines)
    with pytest.raises(RunError, match="was changed or touched while"):
        run(Scorer("toy"), path, output, progress=lambda done, total: done == total and write(lines[::-1]))
    assert not output.exists()


def test_rows_of_a_temporarily_replaced_input_are_never_scored(tmp_path):
    """The input is replaced before it is read and restored before it is compared."""
    path, _ = make_input(tmp_path)
    output, original = tmp_path / "out.jsonl", path.read_bytes()

    def put_back(done, total):
        if done == total:
            path.write_bytes(original)
            os.utime(path, ns=(1, 1))

    with open_rows(path) as source:
        path.write_text(path.read_text().replace("number 3", "number 4"))
        with pytest.raises(RunError, match="was changed or touched"):
            score_file(Scorer("toy").pipeline, source, output, RunOptions(part_rows=8), progress=put_back)
    assert not output.exists()
    run(Scorer("toy"), path, output, part_rows=8)
    run(Scorer("toy"), path, tmp_path / "clean.jsonl", part_rows=8)
    assert output.read_bytes() == (tmp_path / "clean.jsonl").read_bytes()


def test_image_changed_during_a_run_is_reported_by_the_next_run(tmp_path):
    path, _ = make_input(tmp_path)
    output, image, replaced = tmp_path / "out.jsonl", tmp_path / "red.png", []

    def replace_once(done, total):
        if done >= 8 and not replaced:
            replaced.append(done)
            Image.new("RGB", (48, 32), "orange").save(tmp_path / "new.png")
            (tmp_path / "new.png").replace(image)

    run(Scorer("toy"), path, output, part_rows=100, progress=replace_once)
    with pytest.raises(RunError, match="image files were changed"):
        run(Scorer("toy"), path, output, part_rows=100)


def test_rows_with_repeated_ids_are_all_scored(tmp_path):
    path, lines = make_input(tmp_path)
    path.write_text("\n".join(json.dumps({**line, "id": "same"}) for line in lines))
    output = tmp_path / "out.jsonl"
    assert run(Scorer("toy"), path, output).failed == 0
    assert [row["caption"] for row in read_rows(output)] == [line["caption"] for line in lines]


def test_a_tar_replaced_during_a_run_over_one_file_is_rejected(tmp_path):
    path, output = write_tar(tmp_path / "rows.tar"), tmp_path / "out.jsonl"
    other = write_tar(tmp_path / "other.tar", first=1)
    with pytest.raises(RunError, match=r"rows\.tar: was changed or touched while"):
        run(Scorer("toy"), path, output, progress=lambda done, total: other.exists() and other.replace(path))
    assert not output.exists()


def test_input_deleted_during_a_run_is_reported(tmp_path):
    path, _ = make_input(tmp_path, rows=4)

    def delete(done, total):
        if done == total:
            path.unlink(missing_ok=True)

    with pytest.raises(RunError, match=r"rows\.jsonl: can no longer be"):
        run(Scorer("toy"), path, tmp_path / "out.parquet", progress=delete)
