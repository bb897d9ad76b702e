"""Scoring of one shard: layouts of tars, tables and lines, errors, remote stores."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from threading import Event, Thread

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counting import Counted
from msdscore import Scorer
from msdscore.errors import ConfigError, ImageError, InputError, MissingExtraError, RunError, UnknownNameError
from msdscore.forms.paper import Paper
from msdscore.forms.registry import added
from msdscore.io import stores
from msdscore.io.files import base_name
from msdscore.io.runs import take_folder
from msdscore.io.stores import expand, expand_all, score_names
from msdscore.rows.rules import ColumnNames
from msdscore.rows.tars import read_samples
from msdscore.run.folder import ShardJob, read_facts, shard_facts
from msdscore.run.shards import ShardOptions, score_shard
from msdscore.run.workers import score_on_workers
from msdscore.scoring.spec import ScorerSpec
from msdscore.select.scores import open_scores
from tar_shards import COLOURS, add, jpeg, sample, tar_of, uid, write_tar

COLUMNS = added(Paper)

TOY, TOY_OF_TWO = ScorerSpec(encoder="toy"), ScorerSpec(encoder="toy", batch_size=2)


def scored(source, output, **options):
    result = score_shard(TOY, source, output, ShardOptions(**options))
    return result, pq.read_table(output)


def test_a_tar_of_img2dataset(tmp_path):
    result, table = scored(write_tar(tmp_path / "00000.tar"), tmp_path / "out" / "00000.parquet")
    assert (result.rows, result.failed, result.fresh, result.error) == (6, 0, True, None)
    names = [name for name in COLUMNS if name not in ("warnings", "error")]
    assert table.column_names == ["key", "uid", "caption", *names, "worst_words", "warnings", "error"]
    assert table["key"].to_pylist() == [f"{number:09d}" for number in range(6)]
    assert table["uid"].to_pylist() == [uid(number) for number in range(6)]
    assert table.schema.field("length").type == pa.int32()
    assert table.schema.field("msd").type == pa.float64()
    score = Scorer("toy").score(jpeg("green"), table["caption"][1].as_py())
    assert table["msd"][1].as_py() == score.msd
    assert table["soft_msd"][1].as_py() == score.soft_msd
    assert table["worst_words"][1].as_py()[0] == Scorer("toy").explain(jpeg("green"), score.caption).ranked[0].text
    facts = shard_facts(table.schema)
    assert facts.signature == result.signature
    assert facts.source.endswith("00000.tar")
    assert facts.rows == 6
    assert not list((tmp_path / "out").glob(".*"))


def test_finished_shard_is_not_scored_again_until_something_changes(tmp_path):
    source, output = write_tar(tmp_path / "00000.tar"), tmp_path / "00000-scores.parquet"
    score_shard(TOY, source, output)
    before = output.stat().st_mtime_ns
    spec, builds = Counted(encoder="toy"), Counted.builds
    assert not score_shard(spec, source, output).fresh
    assert Counted.builds == builds
    assert not score_shard(Scorer("toy").pipeline, source, output).fresh
    assert output.stat().st_mtime_ns == before
    other = ScorerSpec(encoder="toy", changes={"kappa": 30.0})
    with pytest.raises(RunError, match="kappa:20, now kappa:30"):
        score_shard(other, source, output)
    assert score_shard(other, source, output, ShardOptions(overwrite=True)).fresh
    write_tar(source, rows=3)
    before = output.read_bytes()
    with pytest.raises(RunError, match="its input was changed or"):
        score_shard(other, source, output)
    with pytest.raises(RunError, match=r"was changed or touched"):
        score_shard(other, source, output, ShardOptions(copied=("sha256",)))
    assert output.read_bytes() == before
    assert score_shard(other, source, output, ShardOptions(overwrite=True)).rows == 3
    before = output.read_bytes()
    for options, name in ((ShardOptions(worst=5), "worst"), (ShardOptions(copied=("sha256",)), "copied")):
        with pytest.raises(RunError, match=f"a run with another {name}"):
            score_shard(other, source, output, options)
    for scorer in (replace(other, verdict_at=(0.3, 0.6)), replace(other, verdict_at=(0.3, 0.6)).build()):
        with pytest.raises(RunError, match="another verdict_at"):
            score_shard(scorer, source, output)
    assert read_facts(output).verdict_at == (0.2, 0.5)
    assert output.read_bytes() == before


class Slow(ScorerSpec):
    """A scorer of the toy encoder that counts images, and takes some time for each batch."""

    seconds = 0.0
    images = 0

    def build(self):
        pipeline = super().build()
        encode = pipeline.encoder.encode_images

        def encode_slowly(images):
            Slow.images += len(images)
            time.sleep(Slow.seconds)
            return encode(images)

        pipeline.encoder.encode_images = encode_slowly
        return pipeline


def interrupted(source, output, parts):
    """Kill a process that scores a shard when it has written so many parts; return the folder of the parts."""
    code = (
        "import sys; from test_engine_shard import Slow, score_shard; Slow.seconds = 0.05\n"
        "score_shard(Slow(encoder='toy', batch_size=2), *sys.argv[1:])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(source), str(output)], env=environment)
    folder, deadline = output.with_name(f".{output.name}.parts"), time.monotonic() + 120
    while len(list(folder.glob("part-*.parquet"))) < parts and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not output.exists()
    assert len(list(folder.glob("part-*.parquet"))) >= parts
    return folder


def write_distinct(source, rows):
    """Write a shard in which every image is another one."""
    images = [jpeg((number, 90, 7 * number % 256), (48 + number, 32)) for number in range(rows)]
    captions = [f"a square of colour {number}" for number in range(rows)]
    if source.suffix == ".tar":
        samples = enumerate(zip(images, captions, strict=True))
        tar_of(source, *chain(*(sample(f"{n:05d}", jpg=image, txt=text.encode()) for n, (image, text) in samples)))
    elif source.suffix == ".parquet":
        pq.write_table(pa.table({"image": images, "caption": captions}), source)
    else:
        for number, image in enumerate(images):
            (source.parent / f"{number}.jpg").write_bytes(image)
        lines = [{"image": f"{number}.jpg", "caption": caption} for number, caption in enumerate(captions)]
        source.write_text("\n".join(map(json.dumps, lines)))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "parquet", "jsonl"])
def test_killed_shard_resumes_with_identical_bytes(tmp_path, kind):
    rows, spec = 160, Slow(encoder="toy", batch_size=2)
    output, clean = tmp_path / "out" / "0.parquet", tmp_path / "clean.parquet"
    source = write_distinct(tmp_path / f"00000.{kind}", rows)
    folder = interrupted(source, output, parts=3)
    score_shard(TOY_OF_TWO, source, clean)
    Slow.images = 0
    assert score_shard(spec, source, output).rows == rows
    assert 0 < Slow.images <= rows - 3 * 16
    assert output.read_bytes() == clean.read_bytes()
    assert not folder.exists()


def test_rows_removed_from_a_part_are_scored_again(tmp_path):
    source, output, clean = write_distinct(tmp_path / "00000.tar", 80), tmp_path / "0.parquet", tmp_path / "1.parquet"
    part = interrupted(source, output, parts=2) / "part-000000.parquet"
    pq.write_table(pq.read_table(part).slice(3), part)
    score_shard(TOY_OF_TWO, source, output)
    score_shard(TOY_OF_TWO, source, clean)
    assert output.read_bytes() == clean.read_bytes()


@pytest.mark.slow
def test_parts_of_another_shard_scorer_or_call_are_not_reused(tmp_path):
    source, output = write_distinct(tmp_path / "00000.tar", 160), tmp_path / "0.parquet"
    spec, changed = Slow(encoder="toy", batch_size=2), Slow(encoder="toy", batch_size=2, changes={"kappa": 30.0})
    folder = interrupted(source, output, parts=2)
    stored = {path.name: path.read_bytes() for path in folder.iterdir()}

    def images(scorer, **options):
        output.unlink(missing_ok=True)
        folder.mkdir(exist_ok=True)
        for name, content in stored.items():
            (folder / name).write_bytes(content)
        Slow.images = 0
        score_shard(scorer, source, output, ShardOptions(**options))
        assert not folder.exists()
        return Slow.images

    assert images(spec) <= 160 - 2 * 16
    assert images(changed) == images(spec, overwrite=True) == images(spec, worst=1) == 160
    os.utime(source, ns=(0, 0))
    assert images(spec) == 160
    folder.mkdir()
    (folder / "made-by-msdscore").touch()
    assert not score_shard(spec, source, output).fresh  # an interrupted removal is completed
    assert not folder.exists()


def test_shard_whose_folder_of_parts_is_in_use_is_scored(tmp_path):
    source, output, clean = write_tar(tmp_path / "00000.tar"), tmp_path / "0.parquet", tmp_path / "clean.parquet"
    folder = tmp_path / ".0.parquet.parts"
    lock = take_folder(folder)
    assert score_shard(TOY, source, output).fresh
    lock.release()
    score_shard(TOY, source, clean)
    assert output.read_bytes() == clean.read_bytes()


def test_existing_file_is_not_treated_as_a_pattern(tmp_path):
    source = write_tar(tmp_path / "t[1].tar")
    write_tar(tmp_path / "t1.tar")
    assert expand(str(source)) == [str(source)]
    assert expand(str(write_tar(tmp_path / "a{1,2}.tar"))) == [str(tmp_path / "a{1,2}.tar")]
    assert expand(str(tmp_path / "t[1-3].tar")) == [str(tmp_path / "t1.tar")]
    folder = tmp_path / "[x]"
    assert expand(str(write_tar(folder / "0.tar").parent)) == [str(folder / "0.tar")]


def test_failed_samples_have_an_error(tmp_path):
    failed = {"caption": "x", "status": "failed_to_download", "error_message": "404"}
    path = tar_of(
        tmp_path / "00000.tar",
        ("0.txt", b"a caption without its image"),
        ("1.jpg", jpeg("red")),
        *sample("2", jpg=b"not an image", txt=b"a red square"),
        *sample("3", jpg=jpeg("red"), json=b"{not json"),
        *sample("4", jpg=jpeg("red"), json=json.dumps(failed).encode()),
        ("._4.jpg", b"a hidden system file"),
        *sample("5", jpg=jpeg("red"), txt=b"a red square"),
    )
    result, table = scored(path, tmp_path / "out.parquet")
    assert (result.rows, result.failed) == (6, 5)
    reasons = table["error"].to_pylist()
    parts = ["no image", "no caption", "00000.tar/2.jpg: not an image", "3.json: not valid JSON", "404"]
    assert all(part in reason for part, reason in zip(parts, reasons, strict=False)), reasons
    assert reasons[5] is None
    assert table["msd"].null_count == table["worst_words"].null_count == 5
    assert result.reasons == tuple(reasons[:3])
    before = (tmp_path / "out.parquet").stat().st_mtime_ns
    assert score_shard(TOY, path, tmp_path / "out.parquet", ShardOptions(retry=True)).fresh
    assert (tmp_path / "out.parquet").stat().st_mtime_ns > before


def test_retry_leaves_a_shard_without_failed_rows(tmp_path):
    source, output = write_tar(tmp_path / "00000.tar", rows=2), tmp_path / "out.parquet"
    _, table = scored(source, output, worst=0)
    assert table["worst_words"].to_pylist() == [[], []]
    assert not score_shard(TOY, source, output, ShardOptions(worst=0, retry=True)).fresh
    with pytest.raises(ConfigError, match="worst.*got -1"):
        ShardOptions(worst=-1)


def test_truncated_tar_scores_its_complete_samples(tmp_path):
    whole = write_tar(tmp_path / "whole.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    _, table = scored(tmp_path / "cut.tar", tmp_path / "out.parquet")
    assert "truncated" in table["error"][-1].as_py()
    assert table["error"].null_count >= 1
    (tmp_path / "no.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(InputError, match="not an uncompressed tar shard"):
        score_shard(TOY, tmp_path / "no.tar", tmp_path / "out2.parquet")
    with pytest.raises(InputError, match="gone.tar: no such file"):
        score_shard(TOY, tmp_path / "gone.tar", tmp_path / "out2.parquet")


@pytest.mark.parametrize("keyed", [True, False])
def test_datacomp_metadata_next_to_the_tar_is_used(tmp_path, keyed):
    names, three = [f"{number:09d}" if keyed else uid(number) for number in range(3)], COLOURS[:3]
    files = ((f"{name}.jpg", jpeg(colour)) for name, colour in zip(names, three, strict=True))
    path = tar_of(tmp_path / "00000.tar", *files)
    columns = {"uid": [uid(number) for number in range(3)], "text": [f"a {colour} square" for colour in three]}
    keys = {"key": names} if keyed else {}
    pq.write_table(pa.table(columns | keys), path.with_suffix(".parquet"))
    result, table = scored(path, tmp_path / "out.parquet")
    assert result.failed == 0
    assert table["uid"].to_pylist() == columns["uid"]
    assert table["caption"].to_pylist() == columns["text"]
    with pytest.raises(RunError, match="is an input of this command"):
        score_shard(TOY, path, path.with_suffix(".parquet"))
    pq.write_table(pa.table(keys | columns | {"text": ["x red", "y red", "z red"]}), path.with_suffix(".parquet"))
    with pytest.raises(RunError, match="was changed or touched"):
        score_shard(TOY, path, tmp_path / "out.parquet")
    assert score_shard(TOY, path, tmp_path / "out.parquet", ShardOptions(overwrite=True)).fresh


def test_different_metadata_rows_with_one_key_are_an_error_of_its_sample(tmp_path):
    path = tar_of(tmp_path / "00000.tar", *((f"{key}.jpg", jpeg("red")) for key in "abc"))
    columns = {"key": ["a", "b", "a", "c", "c"], "text": ["a red square", "red", "a blue square", "red", "red"]}
    pq.write_table(pa.table(columns), path.with_suffix(".parquet"))
    _, table = scored(path, tmp_path / "out.parquet")
    assert table["caption"].to_pylist() == [None, "red", "red"]
    assert ["ambiguous" in (error or "") for error in table["error"].to_pylist()] == [True, False, False]


@pytest.mark.parametrize("columns", [{}, {"image": [], "caption": []}])
def test_an_empty_table_is_an_empty_shard(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    result, table = scored(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert (result.rows, result.failed, len(table)) == (0, 0, 0)


def test_scores_next_to_their_tars_are_not_repeated(tmp_path):
    source, output = write_tar(tmp_path / "00000.tar"), tmp_path / "00000.parquet"
    assert [score_shard(TOY, source, output).fresh for _ in range(3)] == [True, False, False]


def test_inputs_are_not_overwritten(tmp_path):
    rows = pa.table({"image": [jpeg("red")], "caption": ["a red square"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(RunError, match="rows.parquet: is an input"):
        score_shard(TOY, tmp_path / "rows.parquet", tmp_path / "rows.parquet", ShardOptions(overwrite=True))
    assert pq.read_table(tmp_path / "rows.parquet") == rows


def test_several_captions_of_an_image_are_one_candidate_set(tmp_path):
    facts = {"captions": ["a red square", "a blue square", {"raw": "a cat"}]}
    path = tar_of(tmp_path / "00000.tar", *sample("a/0", png=jpeg("red"), json=json.dumps(facts).encode()))
    _, table = scored(path, tmp_path / "out.parquet")
    ranked = Scorer("toy").rank(jpeg("red"), table["caption"].to_pylist())
    assert table["key"].to_pylist() == ["a/0"] * 3
    assert table["soft_msd"].to_pylist() == ranked.soft_msd.tolist()


def test_parquet_and_json_lines_are_shards(tmp_path):
    for colour in COLOURS:
        (tmp_path / f"{colour}.jpg").write_bytes(jpeg(colour))
    captions = [f"a {colour} square" for colour in COLOURS]
    rows = [
        {"image": f"{colour}.jpg", "caption": text, "uid": uid(5)}
        for colour, text in zip(COLOURS, captions, strict=True)
    ]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "paths.parquet")
    inside = [{"id": colour, "img": jpeg(colour), "text": text} for colour, text in zip(COLOURS, captions, strict=True)]
    pq.write_table(pa.Table.from_pylist(inside), tmp_path / "inside.parquet", row_group_size=2)
    tables = [scored(tmp_path / name, tmp_path / "out" / f"{number}.parquet")[1] for number, name in
              enumerate(["lines.jsonl", "paths.parquet", "inside.parquet"])]  # fmt: skip
    assert tables[0]["msd"].to_pylist() == tables[1]["msd"].to_pylist() == tables[2]["msd"].to_pylist()
    assert tables[2]["key"].to_pylist() == list(COLOURS)
    assert tables[0]["key"].to_pylist() == [uid(5)] * 6
    assert not np.isnan(tables[0]["msd"].to_numpy()).any()


def test_column_names_can_be_set(tmp_path):
    files = sample("0", jpg=jpeg("red"), txt=b"a blue square", json=b'{"recaption": "a red square"}')
    path = tar_of(tmp_path / "00000.tar", *files)
    _, table = scored(
        path, tmp_path / "out.parquet", columns=ColumnNames(caption="recaption"), copied=("recaption", "key")
    )
    assert table["caption"].to_pylist() == table["recaption"].to_pylist() == ["a red square"]
    assert table["input_key"].to_pylist() == ["0"]


def test_copied_column_must_exist(tmp_path):
    path = write_tar(tmp_path / "00000.tar")
    with pytest.raises(UnknownNameError, match="00000.tar 'sha255'.*'sha256'"):
        score_shard(TOY, path, tmp_path / "out.parquet", ShardOptions(copied=("sha255",)))
    score_shard(TOY, path, tmp_path / "out.parquet", ShardOptions(copied=("exif",)))  # a later row might have one
    assert pq.read_table(tmp_path / "out.parquet")["exif"].null_count == 6
    typed = pa.table({"image": [jpeg("red")], "caption": ["a red square"]})
    pq.write_table(typed, tmp_path / "rows.parquet")
    with pytest.raises(UnknownNameError, match="rows.parquet 'exif'"):
        score_shard(TOY, tmp_path / "rows.parquet", tmp_path / "other.parquet", ShardOptions(copied=("exif",)))
    with pytest.raises(ConfigError, match="column image has image bytes"):
        score_shard(TOY, tmp_path / "rows.parquet", tmp_path / "other.parquet", ShardOptions(copied=("image",)))


def test_columns_to_copy_are_checked_before_anything_is_written(tmp_path):
    rows = {"image": [jpeg("red")], "caption": ["a red square"]}
    for name, more in (("a", {"size": [1]}), ("b", {"size": [2], "sizes": [3]}), ("c", {})):
        pq.write_table(pa.table(rows | more), tmp_path / f"{name}.parquet")
    jobs = [ShardJob(str(tmp_path / f"{name}.parquet"), str(tmp_path / f"scores/{name}.parquet")) for name in "abc"]
    with pytest.raises(UnknownNameError, match="a.parquet 'sizes'.*'size'"):
        list(score_on_workers(TOY, jobs, ShardOptions(copied=("sizes",)), workers=1))
    assert not (tmp_path / "scores").exists()
    results = list(score_on_workers(TOY, jobs, ShardOptions(copied=("size",)), workers=1))
    assert [result.error is None for result in results] == [True, True, False]  # the error of that shard only


def test_remote_stores_give_identical_bytes(tmp_path):
    local = write_tar(tmp_path / "00000.tar", described=False, captioned=False)
    beside = pa.table(
        {"key": [f"{number:09d}" for number in range(6)], "text": ["a red square"] * 6, "uid": [uid(1)] * 6}
    )
    pq.write_table(beside, local.with_suffix(".parquet"))
    memory = fsspec.filesystem("memory")
    for path in (local, local.with_suffix(".parquet")):
        memory.pipe_file(f"/shards/{path.name}", path.read_bytes())
    assert expand("memory://shards/*.tar") == ["memory:///shards/00000.tar"]
    source, target = "memory://shards/00000.tar", "memory://scores/00000.parquet"
    result = score_shard(TOY, source, target)
    assert result.failed == 0
    assert result.fresh
    assert not score_shard(TOY, source, target).fresh
    assert list(memory.ls("/scores", detail=False)) == ["/scores/00000.parquet"]
    here, there = (
        pq.read_table(scored(local, tmp_path / "out.parquet")[0].output),
        pq.read_table(stores.open_store(target)[0].open("/scores/00000.parquet")),
    )
    assert here.equals(there)
    assert read_facts(target).source == source
    address = f"file://{tmp_path}/by-address.parquet"
    score_shard(TOY, str(local), address)
    assert (tmp_path / "by-address.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()
    with pytest.raises(InputError, match="shards/gone.tar: no such file"):
        score_shard(TOY, "memory://shards/gone.tar", target)
    with pytest.raises(InputError, match="nosuch://x/a.tar: unknown kind"):
        score_shard(TOY, "nosuch://x/a.tar", target)


def test_pyarrow_is_used_if_the_fsspec_library_is_missing(tmp_path, monkeypatch):
    def lacking(name):
        raise ImportError("Install s3fs to access S3")

    write_tar(tmp_path / "00000.tar")
    monkeypatch.setattr(fsspec.core, "url_to_fs", lacking)
    found = score_shard(TOY, f"file://{tmp_path}/00000.tar", f"file://{tmp_path}/out/00000.parquet")
    assert (found.rows, found.failed, found.fresh) == (6, 0, True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["00000.parquet"]
    with pytest.raises(MissingExtraError, match="nosuch:// .*Install s3fs"):
        score_shard(TOY, "nosuch://bucket/00000.tar", tmp_path / "out.parquet")
    for name in ("t[1].tar", "a dog.tar", "a%5B.tar"):
        _, path = stores.open_store(f"s3://bucket/{name}?region=eu-west-1")
        assert path == f"bucket/{name.replace('%5B', '[')}"


def test_query_of_an_address_is_preserved():
    asked = "?region=eu-west-1&scheme=http"
    assert stores.join(f"s3://bucket/out{asked}", "0.parquet") == f"s3://bucket/out/0.parquet{asked}"
    assert base_name(f"s3://bucket/in/0.tar{asked}") == "0.tar"
    assert expand(f"s3://bucket/{{0..1}}.tar{asked}") == [f"s3://bucket/{number}.tar{asked}" for number in range(2)]


def test_patterns_are_expanded(tmp_path):
    for number in range(3):
        (tmp_path / f"{number:05d}.tar").write_bytes(b"")
    assert expand(str(tmp_path)) == expand(f"{tmp_path}/*.tar") == expand(f"{tmp_path}/{{00000..00002}}.tar")
    assert expand_all([f"{tmp_path}/*.tar", f"{tmp_path}/00001.tar"]) == expand(str(tmp_path))
    with pytest.raises(InputError, match="no shards found"):
        expand_all([f"{tmp_path}/*.zip"])
    with pytest.raises(ConfigError, match=r"\{2..1\}: expected a range"):
        expand("{2..1}.tar")
    with pytest.raises(ConfigError, match="a/0.tar and b/0.tar"):
        score_names(["a/0.tar", "b/0.tar"])


def test_samples_with_the_same_key_are_separate(tmp_path):
    path = tar_of(
        tmp_path / "00000.tar",
        *sample("same", jpg=jpeg("red"), txt=b"a red square"),
        *sample("same", jpg=jpeg("blue"), txt=b"a blue square"),
        *sample("other", jpg=jpeg("green"), txt=b"a green square", png=jpeg("white")),
    )
    result, table = scored(path, tmp_path / "out.parquet")
    assert (result.rows, result.failed, result.warned) == (3, 0, 2)
    assert table["caption"].to_pylist() == ["a red square", "a blue square", "a green square"]
    assert table["warnings"].to_pylist() == [
        [],
        ["the key same is that of several samples"],
        ["the sample has several images, of which other.jpg was scored"],
    ]
    for row, colour in enumerate(("red", "blue", "green")):
        assert table["msd"][row].as_py() == Scorer("toy").score(jpeg(colour), f"a {colour} square").msd


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_tar_changed_during_scoring_is_rejected(tmp_path, how):
    source, output = write_tar(tmp_path / "00000.tar", rows=40), tmp_path / "out.parquet"
    other = write_tar(tmp_path / "other.tar", rows=40, first=1)

    def replacing(rows):
        for row in rows:
            if row.index == 20 and other.exists():
                if how == "replaced":
                    other.replace(source)
                else:
                    source.write_bytes(other.read_bytes())
                    other.unlink()
            yield row

    with pytest.raises(RunError, match=r"00000\.tar: was changed while"):
        score_shard(TOY, source, output, watch=replacing)
    assert not output.exists()
    assert score_shard(TOY, source, output).rows == 40
    assert pq.read_table(output)["key"][0].as_py() == "000000001"


def test_tar_changed_after_listing_is_rejected(tmp_path):
    source = write_tar(tmp_path / "00000.tar")
    image = next(iter(read_samples(source, ("txt",)))).image
    write_tar(tmp_path / "other.tar", first=1).replace(source)
    with pytest.raises(ImageError, match=r"00000\.tar: was changed after"):
        image.read()


def test_rewrite_of_equal_size_is_detected(tmp_path):
    source, output = write_tar(tmp_path / "00000.tar", rows=400), tmp_path / "out.parquet"
    score_shard(TOY, source, output)
    content = bytearray(source.read_bytes())
    place = content.index(b"a yellow square and a white", len(content) // 2)
    content[place : place + 8] = b"a purple"
    source.write_bytes(content)
    with pytest.raises(RunError, match=r"was changed or touched"):
        score_shard(TOY, source, output)


def test_edited_scores_of_equal_length_are_scored_again(tmp_path):
    source, output = write_tar(tmp_path / "00000.tar"), tmp_path / "out.parquet"
    score_shard(TOY, source, output)
    whole = output.read_bytes()
    assert not score_shard(TOY, source, output).fresh
    first = pq.read_metadata(output).row_group(0).column(0)
    last = (first.dictionary_page_offset or first.data_page_offset) + first.total_compressed_size - 1
    output.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
    assert score_shard(TOY, source, output).fresh
    assert output.read_bytes() == whole


def test_patterns_with_several_stars_and_too_many_names(tmp_path):
    for name in ("a/0.tar", "b/1.tar", "b/c/2.tar"):
        write_tar(tmp_path / name, rows=1)
    assert expand(f"{tmp_path}/*/*.tar") == [f"{tmp_path}/a/0.tar", f"{tmp_path}/b/1.tar"]
    assert expand(f"{tmp_path}/**/*.tar")[-1] == f"{tmp_path}/b/c/2.tar"
    for pattern in ("tars/{0..999999999999}.tar", "{0..9999}/{0..9999}.tar"):
        with pytest.raises(ConfigError, match=r"\d names; .* 1,000,000"):
            expand(pattern)


def test_names_that_are_not_utf8_are_scored(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    source = write_tar(Path(folder) / "00000.tar")
    with tarfile.open(source, "a", encoding="latin-1", format=tarfile.GNU_FORMAT) as shard:
        add(shard, "\xe9.jpg", jpeg("red"))
        add(shard, "\xe9.txt", b"a red square")
    result = score_shard(TOY, source, Path(folder) / "out.parquet")
    table = pq.read_table(io.BytesIO((Path(folder) / "out.parquet").read_bytes()))
    assert (result.failed, table["key"][-1].as_py()) == (0, "\N{REPLACEMENT CHARACTER}")
    assert not score_shard(TOY, source, Path(folder) / "out.parquet").fresh


@pytest.mark.parametrize("facts", [b"[]", b'{"x": 1}', b"{", b"[" * 100_000])
def test_scores_with_damaged_metadata_are_rejected(tmp_path, facts):
    table = pa.table({"key": ["1"]}).replace_schema_metadata({b"msdscore.shard": facts})
    pq.write_table(table, tmp_path / "out.parquet")
    with pytest.raises(RunError, match=r"as scores \(damaged metadata"):
        score_shard(TOY, write_tar(tmp_path / "00000.tar"), tmp_path / "out.parquet")
    with pytest.raises(InputError, match="damaged metadata"):
        open_scores([str(tmp_path / "out.parquet")], tmp_path)


def test_files_of_a_store_are_removed_and_written_with_their_folders():
    name = "memory://removed/deep/a.txt"
    with stores.writing(name) as file:
        file.write(b"content")
    with stores.reading(name) as file:
        assert file.read() == b"content"
    assert fsspec.filesystem("memory").ls("/removed/deep", detail=False) == ["/removed/deep/a.txt"]
    stores.remove(name)
    assert not stores.exists(name)
    stores.remove(name)  # a missing file is no error


@contextmanager
def web_server(answer):
    """Yield the address of a server; `answer` returns the status and content of a path, or only a part of its length."""
    pytest.importorskip("aiohttp")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, content, *length = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(*length or [len(content)]))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
                self.wfile.flush()
                ended.wait(30 if length else 0)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    ended, server = Event(), ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "message"), [(404, "no such file"), (403, "Forbidden"), (500, "Internal Server Error"), (503, "503")]
)
def test_an_error_of_a_web_server_is_not_a_missing_file(tmp_path, status, message):
    with web_server(lambda path: (status, b"")) as address:
        for read in (lambda name: stores.mark(name), lambda name: stores.fetched(name).__enter__()):
            with pytest.raises(InputError, match=message):
                read(f"{address}/a.tar")
    with pytest.raises(InputError, match=r"read \(Cannot connect"):
        stores.mark("http://127.0.0.1:9/a.tar")


def test_a_web_server_that_sends_whole_files_only_is_read(tmp_path):
    source = write_distinct(tmp_path / "00000.tar", 200)
    contents = {"/00000.tar": source.read_bytes()}
    with web_server(lambda path: (200, contents[path]) if path in contents else (404, b"")) as address:
        assert score_shard(TOY, f"{address}/00000.tar", tmp_path / "web.parquet").rows == 200
        assert not score_shard(TOY, f"{address}/00000.tar", tmp_path / "web.parquet").fresh
        contents["/00000.tar"] = write_distinct(tmp_path / "00000.tar", 199).read_bytes()
        with pytest.raises(RunError, match="was changed"):
            score_shard(TOY, f"{address}/00000.tar", tmp_path / "web.parquet")
    score_shard(TOY, write_distinct(source, 200), tmp_path / "local.parquet")
    web, local = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("web", "local"))
    assert web.equals(local)


def test_metadata_of_a_failing_web_server_is_not_left_out(tmp_path):
    statuses = {"/a.parquet": 503, "/b.parquet": 404, "/c.parquet": 403, "/d.parquet": 200}
    with web_server(lambda path: (statuses[path], b"content")) as address:
        with pytest.raises(InputError, match=r"a\.parquet: .*\(503"):
            stores.metadata_table(f"{address}/a.tar")
        assert stores.metadata_table(f"{address}/b.tar") is stores.metadata_table(f"{address}/c.tar") is None
        assert stores.metadata_table(f"{address}/d.tar") == f"{address}/d.parquet"


def test_a_store_that_cannot_be_written_is_a_run_error(tmp_path):
    with (
        web_server(lambda path: (405, b"")) as address,
        pytest.raises(RunError, match="cannot be written"),
        stores.writing(f"{address}/out/a.parquet") as file,
    ):
        file.write(b"content")


def test_a_web_server_that_sends_nothing_more_is_given_up(tmp_path, monkeypatch):
    """A download may take any time, as long as data arrives."""
    monkeypatch.setattr("msdscore.io.stores.STALLED", 0.3)
    with (
        web_server(lambda path: (200, b"x" * 1000, 100_000)) as address,
        pytest.raises(InputError, match="cannot be read"),
    ):
        score_shard(TOY, f"{address}/a.tar", tmp_path / "out.parquet")
    store, _ = stores.open_store("http://127.0.0.1:9/a.tar")
    assert store.client_kwargs["timeout"].total is None
