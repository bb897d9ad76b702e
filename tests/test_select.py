"""`msdscore select`: the best rows of any number of files, in the formats of curation tools."""

import ast
import io
import json
import os
import re
import tarfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import spearmanr

from command_line import completed, msdscore, refused
from msdscore import Scorer
from msdscore.errors import ConfigError, RunError
from msdscore.io import stores
from msdscore.run.folder import Facts, read_facts, write_shard
from msdscore.run.shards import score_shard
from msdscore.scoring.spec import ScorerSpec
from msdscore.select.rule import Quota, Rule
from msdscore.select.run import select
from tar_shards import jpeg, sample, tar_of

ROWS = 50  # of a shard
VALUES = st.lists(
    st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e-300, float("inf"), -7.25, 3.0]) | st.floats(allow_nan=False)
)


def numbers(count, seed):
    """Return scores with ties, failed rows and three groups."""
    noise = np.random.RandomState(seed)
    msd = np.round(noise.randn(count), 1)
    failed = noise.rand(count) < 0.1
    return {
        "key": [f"{seed:05d}{number:04d}" for number in range(count)],
        "uid": ["".join(noise.choice(list("0123456789abcdef"), 32)) for _ in range(count)],
        "caption": [f"a <b>ball</b> {number}" for number in range(count)],
        "similarity": pa.array(np.round(msd + noise.randn(count), 2), mask=failed),
        "support": pa.array(np.round(noise.rand(count), 1), mask=failed),
        "match": pa.array(noise.rand(count), mask=failed),
        "msd": pa.array(msd, mask=failed),
        "worst_words": [["ball"]] * count,
        "verdict": ["supported"] * count,
        "language": noise.choice(["en", "de", "fr"], count),
    }


def shard(folder, number, *, signature="msd|enc:toy@1", source=None):
    table = pa.table(numbers(ROWS, number))
    facts = Facts(
        source=str(source or f"{number:05d}.tar"),
        manifest={"input": stores.mark(str(source)) if source else "x", "signature": signature},
        rows=ROWS,
    )
    write_shard(table, str(folder / f"{number:05d}.parquet"), facts)
    return table


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "scores"
    folder.mkdir()
    tables = [shard(folder, number) for number in range(3)]
    pq.write_table(pa.table({"other": [1]}), folder / "notes.parquet")
    return folder, pa.concat_tables(tables).combine_chunks()


def best(table, column, count, *, among=None, sign=-1):
    """Return the indices of the best rows by a stable sort."""
    values = table.column(column).to_numpy()
    rows = [row for row in range(len(values)) if not np.isnan(values[row]) and (among is None or row in among)]
    return sorted(sorted(rows, key=lambda row: (sign * values[row], row))[:count])


def keys_of(path):
    return path.read_text().splitlines()


@settings(max_examples=25, deadline=None)
@given(VALUES, st.sampled_from(["0.3", "1", "50%", "7", "100%"]), st.booleans(), st.integers(1, 5))
def test_best_rows_equal_a_full_sort(values, keep, lower, size):
    array = np.array(values, dtype=np.float64)
    name = "support" if lower else "msd"
    with TemporaryDirectory() as folder:
        for start in range(0, max(len(array), 1), size):
            some = array[start : start + size]
            columns = {"key": [str(start + number) for number in range(len(some))], name: some}
            pq.write_table(pa.table(columns), Path(folder) / f"{start:05d}.parquet")
        rule = Rule(by=name, keep=Quota.parse(keep))
        made = select([f"{folder}/*.parquet"], rule, f"{folder}/keys.txt")
        found = [int(key) for key in (Path(folder) / "keys.txt").read_text().split()]
    order = sorted(range(len(array)), key=lambda row: (array[row] if lower else -array[row], row))
    assert found == sorted(order[: Quota.parse(keep).of(len(array))])
    if 0 < made.kept < made.valid:
        assert made.threshold == array[order[made.kept - 1]]


@pytest.mark.parametrize("text", ["0", "1.0", "1.5", "-0.1", "many", "", "120%", "nan", "1/0"])
def test_invalid_quota_is_rejected(text):
    with pytest.raises(ConfigError, match=re.escape(f"got {text!r}")):
        Quota.parse(text)


def test_quotas_are_exact():
    assert Quota.parse("9" * 30).of(5) == 5  # more than there are
    assert [Quota.parse("0.3").of(rows) for rows in (10, 5, 1, 12_800_000_000)] == [3, 2, 0, 3_840_000_000]
    assert Quota.parse("0.35").of(10) == 4  # 3.5 is rounded up


def test_npy_output_has_sorted_datacomp_uids(shards, tmp_path):
    folder, table = shards
    answer = completed("select", folder, "-o", tmp_path / "keep.npy", "--keep", "0.3", "--json")
    result = json.loads(answer.stdout)
    scored = table.num_rows - table.column("msd").null_count
    assert (result["files"], result["rows"], result["valid"], result["kept"]) == (3, 150, scored, round(0.3 * scored))
    chosen = best(table, "msd", result["kept"])
    assert result["threshold"] == min(table.column("msd")[row].as_py() for row in chosen)
    uids = [table.column("uid")[row].as_py() for row in chosen]
    # As in DataComp's baselines.
    expected = np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], np.dtype("u8,u8"))
    expected.sort()
    found = np.load(tmp_path / "keep.npy")
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_bounds_are_applied_before_keep(shards, tmp_path):
    folder, table = shards
    answer = completed(
        "select",
        folder,
        "-o",
        tmp_path / "keys.txt",
        "--min",
        "match=0.4",
        "--max",
        "support=0.8",
        "--keep",
        "12",
        "--by",
        "support",
    )
    assert "12 of 150 rows (8.0 %)" in answer.stdout
    match, support = (np.nan_to_num(table.column(name).to_numpy(), nan=np.nan) for name in ("match", "support"))
    among = set(np.flatnonzero((match >= 0.4) & (support <= 0.8)).tolist())
    expected = best(table, "support", 12, among=among, sign=1)  # lower is better
    assert keys_of(tmp_path / "keys.txt") == [table.column("key")[row].as_py() for row in expected]
    completed("select", folder, "-o", tmp_path / "all.txt", "--min", "match:0.4", "--max", "support=0.8")
    assert len(keys_of(tmp_path / "all.txt")) == len(among)


@pytest.mark.parametrize("keep", ["0.3", "2"])
def test_keep_applies_to_each_group(shards, tmp_path, keep):
    folder, table = shards
    answer = completed("select", folder, "-o", tmp_path / "kept.parquet", "--keep", keep, "--per", "language")
    assert "duplicates" not in answer.stdout
    languages = table.column("language").to_pylist()
    expected = []
    for language in ("en", "de", "fr"):
        among = {row for row, own in enumerate(languages) if own == language and table.column("msd")[row].is_valid}
        expected += best(table, "msd", Quota.parse(keep).of(len(among)), among=among)
    found = pq.read_table(tmp_path / "kept.parquet")
    assert found.drop_columns("source_file").equals(table.take(sorted(expected)).replace_schema_metadata())
    assert found.schema.metadata[b"msdscore"] == b"msd|enc:toy@1"


def test_outputs_of_score_are_read(shards, tmp_path):
    _, table = shards
    plain = table.drop_columns(["key", "uid"]).append_column("id", table.column("key"))
    pq.write_table(plain, tmp_path / "scores.parquet")
    lines = [json.dumps(row) for row in plain.drop_columns(["worst_words"]).to_pylist()]
    (tmp_path / "scores.jsonl").write_text("\n".join(lines))
    for name in ("scores.parquet", "scores.jsonl"):
        completed("select", tmp_path / name, "-o", tmp_path / f"{name}.txt", "--keep", "20")
        expected = [table.column("key")[row].as_py() for row in best(table, "msd", 20)]
        assert keys_of(tmp_path / f"{name}.txt") == expected


def test_equal_uids_are_written_once(shards, tmp_path):
    folder, _ = shards
    first, again = folder / "00000.parquet", tmp_path / "copy.parquet"
    again.write_bytes(first.read_bytes())
    answer = msdscore("select", first, again, "-o", tmp_path / "keep.npy", "--keep", "100%")
    assert "uids or keys are duplicates and were written once" in answer.stdout
    assert len(np.load(tmp_path / "keep.npy")) * 2 == int(answer.stdout.split()[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "keep.npy"], "expected a rule, got none; pass --keep 0.3"),
        (["-o", "keep.csv", "--keep", "0.3"], "unknown kind of output; expected a name ending in .npy, .txt, .parquet"),
        (["-o", "keep.npy", "--keep", "0.3", "--by", "mds"], "unknown column of .* 'mds'. Did you mean 'msd'"),
        (["-o", "keep.npy", "--min", "match"], "expected a bound such as match=0.5, got 'match'"),
        (["-o", "keep.npy", "--min", "length=1_0"], "expected a bound such as match=0.5, got 'length=1_0'"),
        (["-o", "keep.npy", "--drop-warning", " "], "expected the text of a warning"),
        (["-o", "keep.npy", "--min", "match=high"], "expected a bound such as match=0.5, got 'match=high'"),
        (["-o", "keep.npy", "--min", "match=0.1", "--per", "language"], "--per language needs --keep"),
        (["-o", "keep.npy", "--keep", "0.3", "--by", "caption"], "column caption is not numeric"),
        (["-o", "keep.npy", "--keep", "1", "--per", "worst_words"], "column worst_words has neither text nor numbers"),
        (["-o", "keep.npy", "--min", "match=nan"], "a bound must be a number, got nan for match"),
    ],
)  # fmt: skip
def test_invalid_usage_is_a_one_line_error(shards, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    error = refused("select", "scores", *arguments)
    assert re.search(message, error), error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores"]


def test_rows_with_a_warning_are_dropped_before_the_best_are_kept(tmp_path):
    captions = ["a red square", "ein rotes Quadrat auf einem Tisch", "a % square", "un cuadrado rojo sobre la mesa"]
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    rows = [{"id": text, "image": "red.png", "caption": text} for text in captions]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    scorer = Scorer("mini")
    for suffix in (".parquet", ".jsonl", ".csv"):
        scorer.score_file(tmp_path / "rows.jsonl", tmp_path / f"scores{suffix}")
        for rule in (("--keep", "100%", "--drop-warning", "Not English"),
                     ("--drop-warning", "not English", "--drop-warning", "%")):  # fmt: skip
            answer = completed("select", tmp_path / f"scores{suffix}", "-o", "-", *rule)
            assert answer.stdout.splitlines() == [captions[0], captions[2]]


def test_columns_of_late_json_lines_are_read(tmp_path):
    rows = [{"id": str(number), "msd": number / 200} for number in range(200)]
    rows[150]["language"] = "en"
    (tmp_path / "scores.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ("select", tmp_path / "scores.jsonl", "-o", "-", "--keep", "1", "--per", "language")
    assert msdscore(*command).stdout.split() == ["150", "199"]


def test_repeated_file_is_read_once(shards, tmp_path):
    folder, _ = shards
    answer = msdscore(
        "select", folder, folder / "00000.parquet", "-o", tmp_path / "keys.txt", "--keep", "100%", "--json"
    )
    assert json.loads(answer.stdout)["rows"] == 3 * ROWS


@pytest.mark.parametrize("rule", [["--min", "match=0.5"], ["--keep", "0.5", "--by", "match"]])
def test_empty_column_is_rejected_unless_all_rows_failed(shards, tmp_path, rule):
    _, table = shards
    table = table.set_column(table.schema.get_field_index("match"), "match", pa.nulls(len(table), pa.float64()))
    pq.write_table(table, tmp_path / "plain.parquet")
    assert "no row has a value in column match" in refused(
        "select", tmp_path / "plain.parquet", "-o", tmp_path / "keys.txt", *rule
    )
    pq.write_table(
        table.set_column(table.schema.get_field_index("msd"), "msd", table["match"]), tmp_path / "no.parquet"
    )
    assert msdscore("select", tmp_path / "no.parquet", "-o", tmp_path / "keys.txt", *rule).returncode == 0


def test_incompatible_scores_are_rejected(shards, tmp_path):
    folder, table = shards
    shard(folder, 7, signature="msd|enc:mini@2")
    answer = msdscore("select", folder, "-o", tmp_path / "keep.npy", "--keep", "0.3")
    assert "expected scores of one signature, got 2: msd|enc:toy@1; msd|enc:mini@2" in answer.stderr
    (folder / "00007.parquet").unlink()
    (tmp_path / "keep.txt").write_text("mine")
    assert "exists with other content; choose another -o" in refused(
        "select", folder, "-o", tmp_path / "keep.txt", "--keep", "0.3"
    )
    assert msdscore("select", folder, "-o", tmp_path / "keep.txt", "--keep", "0.3", "--overwrite").returncode == 0
    bad = table.set_column(table.schema.get_field_index("uid"), "uid", pa.array(["12"] * table.num_rows))
    pq.write_table(bad, tmp_path / "bad.parquet")
    answer = msdscore("select", tmp_path / "bad.parquet", "-o", tmp_path / "bad.npy", "--keep", "0.3")
    assert "expected uids of 32 hexadecimal digits, got '12'; write a list of keys" in answer.stderr
    assert not (tmp_path / "bad.npy").exists()


@pytest.mark.parametrize(
    ("columns", "output", "message"),
    [
        ({"key": ["a\nb"]}, "out.txt", r"key 'a\nb' contains a newline; write rows instead: -o kept.parquet"),
        ({"name": ["a"]}, "out.txt", "expected a column key or id, got name, msd"),
        ({"key": ["a"]}, "out.npy", "has no column uid; write a list of keys instead: -o keys.txt"),
        ({"key": ["a"]}, "out", "new shards are copied from scored ones, and this is a single scored file"),
    ],
)
def test_scores_that_do_not_fit_the_output_are_rejected(tmp_path, columns, output, message):
    pq.write_table(pa.table({**columns, "msd": [1.0]}), tmp_path / "a.parquet")
    answer = msdscore("select", tmp_path / "a.parquet", "-o", tmp_path / output, "--keep", "1")
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert message in answer.stderr
    assert not (tmp_path / output).exists()


def test_files_of_other_columns_or_equal_names_are_rejected(shards, tmp_path):
    folder, _ = shards
    pq.write_table(pa.table({"key": ["a"], "msd": [1.0]}), tmp_path / "a.parquet")
    command = ("select", folder, tmp_path / "a.parquet", "-o", tmp_path / "kept.parquet", "--keep", "0.5")
    assert "a.parquet: its columns differ from those of the first file (key, msd)" in msdscore(*command).stderr
    (tmp_path / "again").mkdir()
    for place in (tmp_path / "scores/x.tar", tmp_path / "again/x.tar", tmp_path / "x.tar", tmp_path / "rows.jsonl"):
        place.touch()
    for name in ("scores", "again"):
        shard(tmp_path / name, 0, source=tmp_path / name / "x.tar")
    command = ("select", tmp_path / "scores/00000.parquet", tmp_path / "again", "-o", tmp_path / "new", "--keep", "1")
    assert "two shards are called x.tar; " in msdscore(*command).stderr
    shard(tmp_path / "again", 0, source=tmp_path / "rows.jsonl")
    answer = msdscore("select", tmp_path / "again", "-o", tmp_path / "new", "--keep", "1")
    assert "rows.jsonl; new shards are copies of tars or Parquet files" in answer.stderr
    shard(tmp_path / "again", 0, source=tmp_path / "x.tar")
    answer = msdscore("select", tmp_path / "again", "-o", tmp_path, "--keep", "1")
    assert f"{tmp_path}: contains x.tar, an input of this command" in answer.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("name", "sign"), [("msd", -1), ("support", 1)])
def test_the_survey_shows_rows_next_to_the_threshold(shards, tmp_path, name, sign):
    folder, table = shards
    rule = Rule(by=name, keep=Quota.parse("20"))
    chosen = select([str(folder)], rule, str(tmp_path / "keys.txt"), show=3)
    values = table.column(name).to_pylist()
    order = best(table, name, len(table), sign=sign)
    order.sort(key=lambda row: (sign * values[row], row))
    examples = chosen.survey.examples
    shown = {kind: [row["key"] for row in rows] for kind, rows in examples.items()}
    keys = table.column("key").to_pylist()
    assert sorted(row[name] for row in examples["last kept"]) == sorted(values[row] for row in order[17:20])
    assert set(shown["last kept"]) <= {keys[row] for row in order[:20]}
    assert [row[name] for row in examples["first dropped"]] == [values[row] for row in order[20:23]]
    assert not set(shown["first dropped"]) & {keys[row] for row in order[:20]}
    assert all(row["file"].source == f"{int(row['key'][:5]):05d}.tar" for row in examples["last kept"])
    assert all(row["position"] == int(row["key"][5:]) for row in examples["last kept"])


def write_tar(path, keys, captions=None):
    path.parent.mkdir(exist_ok=True)
    texts = captions or ["a ball"] * len(keys)
    files = (
        sample(key, png=make_image(number)["bytes"], txt=text.encode(), json=b"{}")
        for number, (key, text) in enumerate(zip(keys, texts, strict=True))
    )
    tar_of(path, *chain(*files))


@pytest.fixture
def tars(tmp_path):
    tables = []
    for number in range(2):
        (tmp_path / "scores").mkdir(exist_ok=True)
        table = numbers(ROWS, number)
        write_tar(tmp_path / "tars" / f"{number:05d}.tar", table["key"], table["caption"])
        tables.append(shard(tmp_path / "scores", number, source=tmp_path / "tars" / f"{number:05d}.tar"))
    return tmp_path, pa.concat_tables(tables)


def members(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_new_tars_contain_the_selected_samples_and_resume(tars):
    root, table = tars
    command = ("select", root / "scores", "-o", root / "kept", "--keep", "0.3")
    completed(*command)
    chosen = {
        table.column("key")[row].as_py()
        for row in best(table, "msd", round(0.3 * (100 - table.column("msd").null_count)))
    }
    found = {}
    for number in range(2):
        made, given_files = (members(root / folder / f"{number:05d}.tar") for folder in ("kept", "tars"))
        assert made == {name: data for name, data in given_files.items() if name.partition(".")[0] in chosen}
        found |= made
    assert len(found) == 3 * len(chosen)
    before = (root / "kept/00000.tar").stat().st_mtime_ns
    (root / "kept/00001.tar").unlink()  # as if interrupted between the two
    assert msdscore(*command).returncode == 0
    assert (root / "kept/00000.tar").stat().st_mtime_ns == before
    assert (root / "kept/00001.tar").exists()
    assert "contains another selection" in refused(*command[:-1], "0.5")
    assert msdscore(*command[:-1], "0.5", "--overwrite").returncode == 0
    assert len(members(root / "kept/00000.tar")) > len(members(root / "tars/00000.tar")) * 0.3


@pytest.mark.parametrize("folder", ["tars", "scores"])
def test_new_tars_never_replace_the_scored_tars(tars, folder):
    root, _ = tars
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert "an input of this command" in refused(
        "select", root / "scores", "-o", root / folder, "--keep", "0.3", "--overwrite"
    )
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_tars_of_an_earlier_selection_are_removed(tars):
    root, _ = tars
    assert msdscore("select", root / "scores", "-o", root / "kept", "--keep", "0.3").returncode == 0
    (root / "kept/mine.tar").write_bytes(b"mine")
    one = ("select", root / "scores/00001.parquet", "-o", root / "kept", "--keep", "0.3", "--overwrite")
    assert msdscore(*one).returncode == 0
    assert sorted(path.name for path in (root / "kept").iterdir()) == [
        "00001.parquet", "00001.tar", "mine.tar", "selection.json",
    ]  # fmt: skip


def make_image(number):
    content = io.BytesIO()
    Image.new("RGB", (20, 20), (number * 4, 90, 200 - number * 4)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


@pytest.fixture
def parquets(tmp_path):
    """Write Parquet files with images and uids, one with lists of captions, and their scores."""
    (tmp_path / "data").mkdir()
    for shard_number, texts in enumerate(
        ([f"a ball {n}" for n in range(9)], [["a cat", f"two {n}"] for n in range(6)])
    ):
        rows = {
            "uid": [f"{shard_number}{number:031x}" for number in range(len(texts))],
            "image": [make_image(number) for number in range(len(texts))],
            "texts": texts,
            "width": pa.array(range(len(texts)), pa.int16()),
        }
        table = pa.table(rows).replace_schema_metadata({"huggingface": "{}"})
        pq.write_table(table, tmp_path / f"data/{shard_number:05d}.parquet", row_group_size=4)
    command = ("score", tmp_path / "data", "-o", tmp_path / "scores", "-e", "toy", "--caption-column", "texts")
    completed(*command, "--workers", 1)
    return tmp_path


def test_new_parquet_files_have_all_columns_and_the_scores(parquets):
    command = ("select", parquets / "scores", "-o", parquets / "kept", "--keep", "0.3")
    completed(*command)
    scores = pq.ParquetDataset(parquets / "scores").read()
    order = sorted(range(len(scores)), key=lambda row: (-scores["msd"][row].as_py(), row))
    chosen = {(row["uid"], row["caption"]): row for row in scores.take(order[: round(0.3 * len(scores))]).to_pylist()}
    found = set()
    for name in ("00000.parquet", "00001.parquet"):
        made, source = (pq.read_table(parquets / folder / name) for folder in ("kept", "data"))
        assert made.schema.names[:4] == source.schema.names
        assert made.schema.types[:4] == source.schema.types
        assert made.schema.metadata[b"huggingface"] == b"{}"
        assert made.schema.metadata[b"msdscore"].startswith(b"msd|enc:toy")
        assert "error" not in made.column_names
        own = {row["uid"]: row for row in source.to_pylist()}
        for row in made.to_pylist():
            texts, msd, warnings = row["texts"], row["msd"], row["warnings"]
            if isinstance(texts, str):
                texts, msd, warnings = [texts], [msd], [warnings]
            found.update((row["uid"], text) for text in texts)
            assert {name: row[name] for name in ("uid", "image", "width")} == {
                name: own[row["uid"]][name] for name in ("uid", "image", "width")
            }
            assert msd == [chosen[row["uid"], text]["msd"] for text in texts]
            assert warnings == [chosen[row["uid"], text]["warnings"] for text in texts]
    assert found == set(chosen)
    before = (parquets / "kept/00000.parquet").stat().st_mtime_ns
    (parquets / "kept/00001.parquet").unlink()  # as if interrupted between the two
    assert msdscore(*command).returncode == 0
    assert (parquets / "kept/00000.parquet").stat().st_mtime_ns == before
    assert (parquets / "kept/00001.parquet").exists()
    assert "contains another selection, or other shards" in refused(*command[:-1], "0.5")


def test_selected_rows_have_source_file_and_id(parquets):
    completed("select", parquets / "scores", "-o", parquets / "kept.parquet", "--keep", "100%")
    kept = pq.read_table(parquets / "kept.parquet").to_pylist()
    assert len(kept) == 9 + 12
    for row in kept:
        assert Path(row["source_file"]) == parquets / "data" / f"0000{row['uid'][0]}.parquet"
        data = pq.read_table(row["source_file"]).to_pylist()
        (own,) = (other for other in data if other["uid"] == row["uid"])
        assert row["caption"] in (own["texts"] if isinstance(own["texts"], list) else [own["texts"]])


def test_selected_rows_of_score_outputs_have_their_source_file(tmp_path):
    image = make_image(1)["bytes"]
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(image)
        rows = [{"image": f"{name}.png", "caption": f"a ball {n}", "source_file": "own"} for n in range(2)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        completed("score", tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}.parquet", "-e", "toy")
    both = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    completed("select", *both, "-o", tmp_path / "kept.parquet", "--keep", "100%")
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept["source_file"].to_pylist() == ["own"] * 4
    sources = [str(tmp_path / f"{name}.jsonl") for name in "aabb"]
    assert kept["scored_source_file"].to_pylist() == sources
    assert msdscore("select", both[0], "-o", tmp_path / "one.parquet", "--keep", "100%").returncode == 0
    assert "scored_source_file" not in pq.read_schema(tmp_path / "one.parquet").names


def test_changed_parquet_file_is_rejected(parquets):
    path = parquets / "data/00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(list(range(8, -1, -1))), path)
    command = ("select", parquets / "scores", "-o", parquets / "kept", "--keep", "100%")
    assert "is not the file that was scored; score it again" in msdscore(*command).stderr
    facts = read_facts(str(parquets / "scores/00000.parquet"))
    scores = pq.read_table(parquets / "scores/00000.parquet")
    known = replace(
        facts, manifest={**facts.manifest, "input": stores.mark(str(path))}
    )  # as if the fingerprint did not detect the change
    write_shard(scores.replace_schema_metadata(None), str(parquets / "scores/00000.parquet"), known)
    assert "row 0 does not have the caption that was scored" in msdscore(*command, "--overwrite").stderr
    pq.write_table(pq.read_table(path).rename_columns(["uid", "image", "other", "width"]), path)
    write_shard(
        scores.replace_schema_metadata(None),
        str(parquets / "scores/00000.parquet"),
        replace(facts, manifest={**facts.manifest, "input": stores.mark(str(path))}),
    )
    assert "no longer has a caption column" in msdscore(*command, "--overwrite").stderr
    path.unlink()
    assert "the scored file does not exist" in msdscore(*command, "--overwrite").stderr
    assert not (parquets / "kept/00000.parquet").exists()


def test_truncated_tar_yields_its_complete_samples(tmp_path):
    write_tar(tmp_path / "tars/00000.tar", [f"{number:09d}" for number in range(6)])
    whole = (tmp_path / "tars/00000.tar").read_bytes()
    (tmp_path / "tars/00000.tar").write_bytes(whole[: 3 * 3 * 1024 + 700])  # within the image of the fourth
    scored = msdscore("score", tmp_path / "tars/00000.tar", "-o", tmp_path / "scores", "-e", "toy", "--workers", 1)
    assert (scored.returncode, "truncated" in scored.stderr) == (3, True)
    completed("select", tmp_path / "scores", "-o", tmp_path / "kept", "--keep", "100%")
    assert len(members(tmp_path / "kept/00000.tar")) == 9
    (tmp_path / "tars/00000.tar").unlink()
    gone = msdscore("select", tmp_path / "scores", "-o", tmp_path / "other", "--keep", "100%")
    assert "the scored tar does not exist; run the command in the folder where it was scored" in gone.stderr


def test_changed_tar_is_rejected(tars):
    root, table = tars
    keys, captions = (table.column(name).to_pylist()[:ROWS] for name in ("key", "caption"))
    tar = root / "tars/00000.tar"
    write_tar(tar, keys, [captions[-1], *captions[:-1]])
    command = ("select", root / "scores", "-o", root / "kept", "--keep", "0.3")
    assert "is not the tar that was scored; score it again" in refused(*command)
    shard(root / "scores", 0, source=tar)  # as if the fingerprint did not detect the change
    assert "as it was scored; score the tar again" in refused(
        "select", root / "scores", "-o", root / "other", "--keep", "0.3"
    )
    assert list(root.glob("*/00000.tar")) == [tar]


def test_samples_that_share_a_key_are_distinguished_by_position(tmp_path):
    captions = ["a red ball", "a cat", "a red ball", "a green tree"]
    write_tar(tmp_path / "tars/00000.tar", ["a", "b", "a", "b"], captions)
    completed("score", tmp_path / "tars/00000.tar", "-o", tmp_path / "scores", "-e", "toy", "--workers", 1)
    table = pq.read_table(tmp_path / "scores/00000.parquet")
    assert table.column("caption").to_pylist() == captions
    (row,) = best(table, "msd", 1)
    assert msdscore("select", tmp_path / "scores", "-o", tmp_path / "kept", "--keep", "1").returncode == 0
    assert [text for name, text in members(tmp_path / "kept/00000.tar").items() if name.endswith("txt")] == [
        captions[row].encode()
    ]


def test_ambiguous_keys_are_rejected(tmp_path):
    for name, ids in (("a", "01"), ("b", "12"), ("c", "33")):
        pq.write_table(pa.table({"id": list(ids), "msd": [1.0, 0.0]}), tmp_path / f"{name}.parquet")
    both = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert "key '1' is ambiguous: it names rows of" in refused(
        "select", *both, "-o", tmp_path / "keys.txt", "--keep", "0.5"
    )
    assert "key '3' is ambiguous: it names rows of two rows of" in refused(
        "select", tmp_path / "c.parquet", "-o", tmp_path / "keys.txt", "--keep", "0.5"
    )
    assert not (tmp_path / "keys.txt").exists()
    assert msdscore("select", *both, "-o", tmp_path / "kept.parquet", "--keep", "0.5").returncode == 0
    assert pq.read_table(tmp_path / "kept.parquet").column("id").to_pylist() == ["0", "1"]


def test_remote_shards_are_downloaded_once(tars, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    root, table = tars
    memory, fetched = MemoryFileSystem(), []
    memory.put(str(root / "scores"), "/bucket/scores", recursive=True)
    given = MemoryFileSystem.get_file
    monkeypatch.setattr(
        MemoryFileSystem, "get_file", lambda self, *names: [fetched.append(names[0]), given(self, *names)]
    )
    monkeypatch.chdir(root)
    rule = Rule(keep=Quota.parse("7"))
    for name in ("keys.txt", "keep.npy", "kept.parquet", "new"):
        fetched.clear()
        select(["memory://bucket/scores"], rule, f"memory://bucket/{name}", show=2)
        assert sorted(fetched) == [f"/bucket/scores/0000{number}.parquet" for number in range(2)]
    chosen = [table.column("key")[row].as_py() for row in best(table, "msd", 7)]
    assert memory.open("/bucket/keys.txt").read().decode().split() == chosen
    assert len(np.load(io.BytesIO(memory.open("/bucket/keep.npy").read()))) == 7
    assert memory.exists("/bucket/new/00000.tar")
    assert sorted(path.name for path in root.iterdir()) == ["scores", "tars"]


@pytest.mark.parametrize("output", ["keep.npy", "keys.txt", "kept.parquet"])
def test_the_same_selection_may_run_twice(shards, tmp_path, output):
    folder, _ = shards
    command = ("select", folder, "-o", tmp_path / output, "--keep", "4", "--report", tmp_path / "page.html")
    assert msdscore(*command).returncode == 0
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / output, tmp_path / "page.html")
    }
    (tmp_path / "page.html").unlink()  # interrupted before it was written
    assert msdscore(*command).returncode == 0
    assert msdscore(*command).returncode == 0
    assert {path: path.read_bytes() for path in before} == {path: content for path, (content, _) in before.items()}
    assert (tmp_path / output).stat().st_mtime_ns == before[tmp_path / output][1]
    assert "exists with other content" in refused(*command[:-4], "--keep", "5")


def test_the_source_of_scores_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"image": [jpeg("red")] * 3, "caption": ["a red square"] * 3}), "rows.parquet")
    (tmp_path / "link.parquet").symlink_to("rows.parquet")
    assert msdscore("score", "rows.parquet", "-o", "scores", "-e", "toy").returncode == 0
    before = (tmp_path / "rows.parquet").read_bytes()
    for output in ("rows.parquet", "link.parquet", "scores/rows.parquet"):
        assert "is an input of this command" in refused("select", "scores", "-o", output, "--keep", "1", "--overwrite")
    assert (tmp_path / "rows.parquet").read_bytes() == before


def test_existing_page_is_not_replaced(shards, tmp_path):
    folder, _ = shards
    (tmp_path / "page.html").write_text("precious")
    command = ("select", folder, "-o", tmp_path / "keys.txt", "--keep", "3", "--report", tmp_path / "page.html")
    assert "page.html: exists; choose another" in refused(*command)
    assert (tmp_path / "page.html").read_text() == "precious"
    assert not (tmp_path / "keys.txt").exists()
    assert msdscore(*command, "--overwrite").returncode == 0


def test_unusual_names_of_folders_and_files(shards, tmp_path):
    folder, _ = shards
    expected = select([f"{folder}/{{00000..00001}}.parquet"], Rule(keep=Quota.parse("5")), str(tmp_path / "keys.txt"))
    assert expected.files == 2
    for number, name in enumerate(("a=1", "s[1]", "s{1,2}", "s*", "it's ?", "scores.parquet")):
        odd = tmp_path / name
        odd.mkdir()
        for shard_name in ("00000", "00001"):
            (odd / f"{name}-{shard_name}.parquet").write_bytes((folder / f"{shard_name}.parquet").read_bytes())
        for sources in ([str(odd)], [*map(str, sorted(odd.iterdir()))]):
            made = select(sources, Rule(keep=Quota.parse("5")), str(tmp_path / f"{number}-{len(sources)}.txt"))
            assert (made.files, made.threshold) == (2, expected.threshold)


def test_page_shows_threshold_and_agreement_with_cosine(tars):
    root, table = tars
    rule = ("--keep", "20", "--report", root / "page.html", "--json")
    result = json.loads(completed("select", root / "scores", "-o", root / "keys.txt", *rule).stdout)["cosine"]
    shared = set(best(table, "msd", 20)) & set(best(table, "similarity", 20))
    assert (result["kept"], result["shared"], result["expected"]) == (20, len(shared), 0.2)
    assert 0.3 < result["correlation"] < 1
    page = (root / "page.html").read_text()
    for heading in ("Last kept", "First dropped", "Kept here, dropped by cosine", "Dropped here, kept by cosine"):
        assert f"<h2>{heading}</h2>" in page
    assert "a &lt;b&gt;ball&lt;/b&gt;" in page
    assert "<b>ball" not in page
    assert page.count("data:image") == 32
    assert page.count('<img alt="Image of ') == 32  # every image has an alternative text
    assert page.count("<svg") == page.count('aria-label="Histogram of ') > 0
    assert "least supported: ball" in page
    last = table.column("key")[
        min(best(table, "msd", 20), key=lambda row: (table.column("msd")[row].as_py(), row))
    ].as_py()
    assert last in page
    assert "http" not in page.replace("http-equiv", "")


def test_scores_of_remote_stores_are_read(shards, tmp_path):
    pytest.importorskip("fsspec")
    folder, _ = shards
    for number, name in enumerate(
        (str(folder), f"file://{folder}", f"file://{folder}/0*.parquet", f"{folder}/0*.parquet")
    ):
        completed("select", name, "-o", tmp_path / f"{number}.txt", "--keep", "20")
        assert (tmp_path / f"{number}.txt").read_bytes() == (tmp_path / "0.txt").read_bytes()


def test_sources_without_scores_and_devices_as_folders_are_rejected(shards, tmp_path):
    (tmp_path / "empty").mkdir()
    keys = ("-o", tmp_path / "keys.txt", "--keep", "1")
    for folders in ([shards[0], tmp_path / "empty"], [tmp_path / "empty", shards[0]], [f"file://{tmp_path}/empty"]):
        assert "empty: expected score shards in this folder, found none" in refused("select", *folders, *keys)
    missing = refused("select", tmp_path / "no.parquet", *keys)
    assert "no.parquet" in missing
    assert "folder" not in missing
    for device in ("/dev/null", "/dev/full"):
        error = refused("select", shards[0], "-o", device, "--keep", "1")
        assert f"{device}: is a file; expected the name of a folder for shards" in error


def test_survey_counts_selected_and_dropped_rows_per_bin_and_agrees_with_cosine(shards, tmp_path):
    folder, table = shards
    survey = select([str(folder)], Rule(keep=Quota.parse("20")), str(tmp_path / "keys.txt"), show=3).survey
    values, cosines = (np.array(table.column(name).to_pylist(), dtype=float) for name in ("msd", "similarity"))
    histogram = next(one for one in survey.histograms if one.name == "msd")
    is_kept = np.zeros(len(values), dtype=bool)
    is_kept[best(table, "msd", 20)] = True
    edges = np.linspace(histogram.low, histogram.high, len(histogram.kept) + 1)
    for counts, rows in ((histogram.kept, is_kept), (histogram.dropped, ~is_kept & np.isfinite(values))):
        assert counts.sum() == rows.sum()
        np.testing.assert_allclose(
            np.abs(np.cumsum(counts) - np.cumsum(np.histogram(values[rows], edges)[0])), 0, atol=1
        )
    assert survey.agreement.share == survey.agreement.shared / survey.agreement.kept
    assert 0 < survey.agreement.share <= 1
    both = np.isfinite(values) & np.isfinite(cosines)
    expected = spearmanr(values[both], cosines[both]).statistic  # with ties
    assert survey.agreement.correlation == pytest.approx(expected, abs=1e-9)


def test_uncertainty_is_ranked_highest_first_and_a_file_without_a_signature_gets_none(tmp_path):
    pq.write_table(pa.table({"key": ["a", "b"], "uncertainty": [0.1, 0.9]}), tmp_path / "a.parquet")
    rule = Rule(by="uncertainty", keep=Quota.parse("1"))
    select([str(tmp_path / "a.parquet")], rule, str(tmp_path / "kept.parquet"))
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept.to_pylist() == [{"key": "b", "uncertainty": 0.9}]
    assert not kept.schema.metadata


def test_a_temporary_folder_may_have_a_quote_in_its_name(shards, tmp_path):
    (tmp_path / "it's").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "it's")}
    completed("select", shards[0], "-o", tmp_path / "keys.txt", "--keep", "3", env=environment)
    assert len(keys_of(tmp_path / "keys.txt")) == 3


def test_an_input_column_with_the_name_of_a_score_is_renamed(tmp_path):
    """LAION and DataComp have a column `similarity`."""
    image = make_image(1)
    table = pa.table({"image": [image] * 3, "caption": ["a ball", "a cat", "red"], "similarity": [0.1, 0.2, 0.3]})
    pq.write_table(table, tmp_path / "a.parquet")
    score_shard(ScorerSpec(encoder="toy"), tmp_path / "a.parquet", tmp_path / "scores" / "a.parquet")
    select([str(tmp_path / "scores")], Rule(keep=Quota(count=2)), str(tmp_path / "kept"))
    kept = pq.read_table(tmp_path / "kept/a.parquet")
    scores = pq.read_table(tmp_path / "scores/a.parquet")
    similarity = dict(zip(scores["caption"].to_pylist(), scores["similarity"].to_pylist(), strict=True))
    for row in kept.to_pylist():
        assert row["input_similarity"] == {"a ball": 0.1, "a cat": 0.2, "red": 0.3}[row["caption"]]
        assert row["similarity"] == similarity[row["caption"]]


def listed_tar(path):
    lists = {"a": ["red", "a red square", "blue"], "b": ["green"]}
    facts = {key: {"captions": captions, "uid": key * 32, "source": key} for key, captions in lists.items()}
    tar_of(path, *chain(*(sample(key, jpg=jpeg("red"), json=json.dumps(facts[key]).encode()) for key in facts)))


def test_a_new_tar_has_only_the_selected_captions_of_a_list(tmp_path):
    listed_tar(tmp_path / "a.tar")
    score_shard(ScorerSpec(encoder="toy"), tmp_path / "a.tar", tmp_path / "scores" / "a.parquet")
    scores = pq.read_table(tmp_path / "scores/a.parquet")
    select([str(tmp_path / "scores")], Rule(keep=Quota(count=2)), str(tmp_path / "kept"))
    rows = sorted(best(scores, "msd", 2))
    chosen = [(scores["key"][row].as_py()[0], scores["caption"][row].as_py()) for row in rows]
    found = [
        (name[0], text)
        for name, content in members(tmp_path / "kept/a.tar").items()
        if name.endswith("json")
        for text in json.loads(content)["captions"]
    ]
    assert found == chosen
    table = pq.read_table(tmp_path / "kept/a.parquet")
    assert table["caption"].to_pylist() == [text for _, text in chosen]
    assert table["msd"].to_pylist() == [scores["msd"][row].as_py() for row in rows]
    again = score_shard(ScorerSpec(encoder="toy"), tmp_path / "kept/a.tar", tmp_path / "again.parquet")
    assert (again.rows, again.failed) == (2, 0)
    assert [path.name for path in map(Path, stores.expand(str(tmp_path / "kept")))] == ["a.tar"]


def test_a_new_tar_has_the_metadata_of_the_scored_one(tmp_path):
    """img2dataset and DataComp store captions and more in a table next to the tar."""
    tar_of(tmp_path / "a.tar", *((f"{key}.jpg", jpeg("red")) for key in "abc"))
    columns = {"key": list("cab"), "text": ["blue", "a red square", "red"], "similarity": [3, 1, 2], "url": list("CAB")}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    score_shard(ScorerSpec(encoder="toy"), tmp_path / "a.tar", tmp_path / "scores" / "a.parquet")
    select([str(tmp_path / "scores")], Rule(keep=Quota(count=2)), str(tmp_path / "kept"))
    kept = pq.read_table(tmp_path / "kept/a.parquet").to_pylist()
    expected = {key: (text, number, url) for key, text, number, url in zip(*columns.values(), strict=True)}
    scores = {row["key"]: row["msd"] for row in pq.read_table(tmp_path / "scores/a.parquet").to_pylist()}
    assert len(kept) == 2
    for row in kept:
        assert (row["text"], row["input_similarity"], row["url"]) == expected[row["key"]]
        assert row["msd"] == scores[row["key"]]
    again = score_shard(ScorerSpec(encoder="toy"), tmp_path / "kept/a.tar", tmp_path / "again.parquet")
    assert (again.rows, again.failed) == (2, 0)


def test_files_of_others_next_to_new_tars_are_not_replaced(tmp_path):
    listed_tar(tmp_path / "a.tar")
    score_shard(ScorerSpec(encoder="toy"), tmp_path / "a.tar", tmp_path / "scores" / "a.parquet")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/a.parquet").write_text("mine")
    with pytest.raises(RunError, match="other shards"):
        select([str(tmp_path / "scores")], Rule(keep=Quota(count=2)), str(tmp_path / "kept"))
    assert (tmp_path / "kept/a.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    ("names", "expected"), [(["uid"], ["u0", "u1"]), (["uid", "id"], ["i0", "i1"]), ([], ["0", "1"])]
)
def test_keys_of_parquet_rows_are_their_ids(tmp_path, names, expected):
    columns = {name: [f"{name[0]}{number}" for number in range(2)] for name in names}
    pq.write_table(pa.table({"image": [make_image(1)] * 2, "caption": ["a", "b"], **columns}), tmp_path / "a.parquet")
    score_shard(ScorerSpec(encoder="toy"), tmp_path / "a.parquet", tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet")["key"].to_pylist() == expected


def test_the_join_of_the_cookbook_works_as_written(tmp_path, monkeypatch):
    for name in ("pandas", "polars", "duckdb"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    columns = {
        "uid": [f"u{n}" for n in range(3)],
        "image": [make_image(n) for n in range(3)],
        "caption": ["a", "b", "c"],
    }
    pq.write_table(pa.table(columns), "pairs.parquet")
    for output in ("scores", "scores.parquet"):
        completed(
            "score", "pairs.parquet", "-o", output, "-e", "toy", *(["--workers", 1] if output == "scores" else [])
        )
    Path("scores/pairs.parquet").rename("scores/00000.parquet")
    page = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
    code = page.partition("## Join scores with your own table")[2].partition("```python\n")[2].partition("```")[0]
    statements = code.split("\n\n", 1)[1]
    names: dict = {}
    exec("import duckdb, pandas, polars", names)
    for statement in ast.parse(statements).body:
        result = eval(compile(ast.Expression(statement.value), "cookbook", "eval"), names)
        assert "msd" in list(result.columns)
        assert len(result) == (0 if "match" in list(result.columns) else 3)  # the toy encoder has no bank
