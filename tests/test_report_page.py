"""The report of a scored file: input, selection, comparison and output."""

import json
import re
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coloured_pairs import COLOURS, two_coloured
from command_line import completed, invoke, refused
from hostile import Tags
from msdscore import Scorer
from msdscore.errors import ConfigError, InputError, RunError
from msdscore.io.images import sample_image
from msdscore.report.build import ReportOptions, build, worst
from msdscore.report.results import read_results, rows_with_images, standings
from msdscore.rows.files import open_rows
from msdscore.rows.rules import ColumnNames
from msdscore.run.rows import score_file

HOSTILE = "</script><img src=x onerror=document.title='owned'> a <b>red</b> ball"
SYSTEMS = {"good": 0.0, "poor": 0.7}


def write_rows(folder):
    """Write images of two colours captioned by two systems, one of which is often wrong; some rows are invalid."""
    rng = np.random.default_rng(0)
    (folder / "img").mkdir()
    rows = []
    for number in range(8):
        left, right, other = (str(name) for name in rng.permutation(list(COLOURS))[:3])
        two_coloured(left, right).save(folder / "img" / f"{number}.png")
        for system, wrong in SYSTEMS.items():
            named = other if rng.random() < wrong else right
            rows.append({"image": f"img/{number}.png", "caption": f"{left} beside {named}", "system": system})
    rows[0]["caption"] = HOSTILE
    rows.append({"image": "img/missing.png", "caption": "lost", "system": "good"})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "rows.jsonl"


@pytest.fixture(scope="module")
def scorer():
    return Scorer("toy")


@pytest.fixture(scope="module")
def scored(tmp_path_factory, scorer):
    folder = tmp_path_factory.mktemp("scored")
    rows = write_rows(folder)
    for suffix in ("parquet", "jsonl", "csv"):
        with open_rows(rows) as source:
            score_file(scorer.pipeline, source, folder / f"out.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_all_score_formats_are_read_with_their_signature(scored, scorer, suffix):
    results = read_results(scored / f"out.{suffix}")
    assert len(results) == 17
    assert results.signature == scorer.signature
    assert results.captions[0] == HOSTILE
    assert set(results.systems) == {"good", "poor"}
    assert np.isnan(results.numbers["msd"]).sum() == 1
    assert "no such file" in results.errors[16]
    assert results.numbers["msd"][3] == pytest.approx(read_results(scored / "out.parquet").numbers["msd"][3])


def test_a_file_without_scores_is_rejected(scored):
    with pytest.raises(
        InputError,
        match="msd, .*; found: image, caption",
    ):
        read_results(scored / "rows.jsonl")


def test_worst_rows_are_first(scored):
    results = read_results(scored / "out.jsonl")
    rows = worst(results, "msd", 5)
    values = results.numbers["msd"][rows]
    assert values.tolist() == sorted(values.tolist())
    assert values[0] == np.nanmin(results.numbers["msd"])
    assert len(worst(results, "msd", 100)) == 16
    forgotten = worst(results, "coverage", 100, per_image=True)
    assert len({results.images[row] for row in forgotten}) == len(forgotten) == 8


def test_captioners_are_sorted_by_their_means(scored):
    results = read_results(scored / "out.jsonl")
    for metric, sign in (("similarity", -1), ("coverage", 1)):
        means = standings(results, metric)
        values = [mean.value for _, _, mean in means]
        assert sorted(values, key=lambda value: sign * value) == values
        for system, captions, mean in means:
            own = results.numbers[metric][np.array(results.systems) == system]
            assert captions == np.isfinite(own).sum() == 8
            assert mean.value == pytest.approx(np.nanmean(own))
            assert mean.low <= mean.value <= mean.high


def test_no_comparison_without_systems(scored, tmp_path):
    table = pq.read_table(scored / "out.parquet").drop_columns(["system"])
    pq.write_table(table, tmp_path / "plain.parquet")
    assert standings(read_results(tmp_path / "plain.parquet"), "msd") == []


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def test_the_page_contains_every_row_and_explains_the_worst(scored, scorer, tmp_path):
    made = build(scored / "out.jsonl", tmp_path / "r.html", ReportOptions(images=scored, show=3), scorer=scorer)
    assert (made.rows, made.failed, made.explained) == (17, 1, 3)
    data = data_of(tmp_path / "r.html")
    assert data["texts"]["caption"][0] == HOSTILE
    assert data["numbers"]["msd"][16] is None
    assert all(len(card["images"]) == 2 for gallery in data["galleries"] for card in gallery["cards"])
    assert "style=" in data["galleries"][0]["cards"][0]["words"]


def test_reports_count_withheld_verdicts_separately_and_have_the_limits_of_the_run(tmp_path):
    captions = ["a close up of a cat", "the of and", "cat cat cat cat cat cat cat cat cat", "a plate of pasta"]
    rows = [{"image": str(sample_image("cat")), "caption": caption} for caption in captions]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    scorer, found = Scorer(verdict_at=(0.05, 0.6)), []
    for suffix in ("parquet", "jsonl"):
        with open_rows(path) as source:
            score_file(scorer.pipeline, source, tmp_path / f"out.{suffix}")
        build(tmp_path / f"out.{suffix}", tmp_path / "r.html", ReportOptions(show=0, overwrite=True))
        found.append(data_of(tmp_path / "r.html"))
    for data in found:
        assert data["texts"]["verdict"] == ["on topic", "", "", scorer.score(sample_image("cat"), captions[3]).verdict]
        assert all(match is not None for match in data["numbers"]["match"])
        assert data["verdicts"] == {"on topic": [0.6, 1.0], "unsure": [0.05, 0.6], "off topic": [0.0, 0.05]}
    earlier = pq.read_table(tmp_path / "out.parquet").drop_columns(["verdict"])
    pq.write_table(earlier, tmp_path / "earlier.parquet")
    assert read_results(tmp_path / "earlier.parquet").verdicts[0] == "on topic"


def test_words_in_doubt_have_no_map(tmp_path):
    rows, judging = write_rows(tmp_path), Scorer()
    with open_rows(rows) as source:
        score_file(judging.pipeline, source, tmp_path / "out.jsonl")
    build(tmp_path / "out.jsonl", tmp_path / "r.html", ReportOptions(images=tmp_path, show=2), scorer=judging)
    galleries = data_of(tmp_path / "r.html")["galleries"]
    assert [{len(card["images"]) for card in gallery["cards"]} for gallery in galleries] == [{1}, {1}, {2}]


def test_rows_are_explained_by_the_default_scorer_of_their_signature(scored, scorer, tmp_path):
    signatures = []

    def default(signature):
        signatures.append(signature)
        return scorer

    made = build(scored / "out.jsonl", tmp_path / "r.html", ReportOptions(images=scored, show=3), default=default)
    assert made.explained == 3
    assert signatures == [scorer.signature]
    build(scored / "out.jsonl", tmp_path / "r2.html", ReportOptions(images=scored), scorer=scorer, default=default)
    assert len(signatures) == 1


def test_images_are_plain_without_an_encoder(scored, tmp_path):
    made = build(scored / "out.csv", tmp_path / "r.html", ReportOptions(images=scored, show=3))
    assert made.explained == 0
    assert [len(card["images"]) for card in data_of(tmp_path / "r.html")["galleries"][0]["cards"]] == [1, 1, 1]


def test_report_without_images(scored, tmp_path):
    table = pq.read_table(scored / "out.parquet").drop_columns(["image"])
    pq.write_table(table, tmp_path / "plain.parquet")
    made = build(tmp_path / "plain.parquet", tmp_path / "r.html", ReportOptions(show=2))
    card = data_of(tmp_path / "r.html")["galleries"][0]["cards"][0]
    assert card["images"] == []
    assert card["note"].startswith("the file does not name its image; pass --images FOLDER")
    assert made.unseen == (card["note"],) * 4


def test_embedded_images_are_read_from_the_scored_file(tmp_path):
    images = [two_coloured("green", "red"), two_coloured("blue", "white")]
    table = pa.table({"image": [png(image) for image in images], "caption": ["green and red", "a dog"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    scored = tmp_path / "out.parquet"
    with open_rows(tmp_path / "rows.parquet") as source:
        score_file(Scorer("toy").pipeline, source, scored)
    for name, options in (("known", ReportOptions()), ("given", ReportOptions(rows=tmp_path / "rows.parquet"))):
        made = build(scored, tmp_path / f"{name}.html", options, scorer=Scorer("toy"))
        assert (made.explained, made.unseen) == (2, ())
    pq.write_table(table.slice(1), tmp_path / "rows.parquet")  # a different file, whose rows do not match the scores
    without = build(scored, tmp_path / "r.html", ReportOptions())
    assert "--rows with the file or folder that was scored" in without.unseen[0]


def test_columns_of_the_run_are_used(tmp_path):
    two_coloured("green", "red").save(tmp_path / "a.png")
    rows = [{"Photo": "a.png", "alt": text, "msd": "mine"} for text in ("green and red", "a dog")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("plain.csv", "own.jsonl"):
        with open_rows(tmp_path / "rows.jsonl", columns=ColumnNames(image="photo", caption="alt")) as source:
            score_file(Scorer("toy").pipeline, source, tmp_path / name)
        results = read_results(tmp_path / name)
        assert results.captions == ("green and red", "a dog")
        assert not np.isnan(results.numbers["msd"]).any()
        assert results.others["input_msd"] == ("mine", "mine")
        made = build(tmp_path / name, tmp_path / f"{name}.html", ReportOptions(), scorer=Scorer("toy"))
        assert made.unseen == ()


def test_a_folder_without_the_images_is_reported(scored, tmp_path):
    (tmp_path / "empty").mkdir()
    arguments = ["report", str(scored / "out.jsonl"), "-o", str(tmp_path / "r.html"), "-e", "toy"]
    answer = completed(*arguments, "--images", str(tmp_path / "empty"))
    assert "cards have no image: " in answer.stderr
    assert "no such file" in answer.stderr


def png(image):
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_page_is_self_contained_and_escapes_captions(scored, scorer, tmp_path):
    build(scored / "out.jsonl", tmp_path / "r.html", ReportOptions(images=scored, title="<b>x</b>"), scorer=scorer)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert [tag for tag, _ in tags.seen if tag in ("img", "b", "link", "iframe")] == []
    assert [attrs.get("type") for tag, attrs in tags.seen if tag == "script"] == ["application/json", None]
    assert "https://" not in text
    assert "default-src 'none'" in text
    for gallery in data_of(tmp_path / "r.html")["galleries"]:
        for card in gallery["cards"]:
            inner = Tags()
            inner.feed(card["words"])
            assert {tag for tag, _ in inner.seen} <= {"span"}


def test_another_scorer_is_rejected(scored, tmp_path):
    other = Scorer("toy", "long")
    with pytest.raises(ConfigError, match=r"with msd\|.*k:3,2.* has msd\|.*k:5,3"):
        build(scored / "out.parquet", tmp_path / "r.html", ReportOptions(), scorer=other)


def test_invalid_outputs_and_folders_are_rejected(scored, tmp_path):
    with pytest.raises(ConfigError, match=r"ending in \.html"):
        build(scored / "out.csv", tmp_path / "r.pdf", ReportOptions())
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="r.html: cannot be written"):
        build(scored / "out.csv", tmp_path / "file" / "r.html", ReportOptions())
    with pytest.raises(InputError, match="none: no such folder of images"):
        build(scored / "out.csv", tmp_path / "r.html", ReportOptions(images=tmp_path / "none"))


def test_empty_file_gives_an_empty_page(tmp_path):
    columns = {name: pa.array([], pa.float64()) for name in ("msd", "coverage", "support", "similarity", "length")}
    pq.write_table(pa.table(columns | {"caption": pa.array([], pa.string())}), tmp_path / "none.parquet")
    assert build(tmp_path / "none.parquet", tmp_path / "r.html", ReportOptions()).rows == 0


def test_report_command(scored, tmp_path):
    answer = completed(
        "report", str(scored / "out.jsonl"), "-o", str(tmp_path / "r.html"), "-e", "toy", "--images", str(scored)
    )
    assert "17 rows, 1 failed, 12 explained" in answer.stderr
    assert (tmp_path / "r.html").exists()
    plain = ["report", str(scored / "out.jsonl"), "-o", str(tmp_path / "r2.html"), "--images", str(scored)]
    answer = invoke(*plain)
    assert "pass --encoder" in answer.stderr  # toy is not the default encoder
    assert "0 explained" in answer.stderr


def test_missing_rows_file_is_rejected(scored, tmp_path):
    command = ("report", scored / "out.parquet", "-o", tmp_path / "r.html", "-e", "toy")
    assert "no.jsonl" in refused(*command, "--rows", tmp_path / "no.jsonl")
    assert not (tmp_path / "r.html").exists()


def test_a_folder_of_scored_shards_is_one_report(tmp_path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    for shard, colours in (("a", ("red", "blue")), ("b", ("green",))):
        lines = [
            json.dumps({"image": str(tmp_path / "red.png"), "caption": f"a {colour} square"}) for colour in colours
        ]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines))
    completed(
        "score", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "-e", "toy", "-o", str(tmp_path / "scores")
    )
    results = read_results(tmp_path / "scores")
    assert results.captions == ("a red square", "a blue square", "a green square")
    assert results.others["shard"] == ("a", "a", "b")
    assert results.signature.startswith("msd|enc:toy@1|")
    told = completed("report", str(tmp_path / "scores"), "-o", str(tmp_path / "page.html"))
    assert "3 rows, 0 failed" in told.stderr
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="none: expected score shards"):
        read_results(tmp_path / "none")
    other = pq.read_table(tmp_path / "scores" / "b.parquet")
    facts = {**other.schema.metadata, b"msdscore": b"msd|enc:other"}
    pq.write_table(other.replace_schema_metadata(facts), tmp_path / "scores" / "c.parquet")
    with pytest.raises(ConfigError, match="got 2: "):
        read_results(tmp_path / "scores")


def square(colour):
    return png(Image.new("RGB", (32, 32), colour))


@pytest.fixture
def parquet_shards(tmp_path):
    """Two Parquet shards with image bytes, of which the second has lists of captions, and their scores."""
    (tmp_path / "data").mkdir()
    images = [square(colour) for colour in ("red", "green", "blue", "red", "green", "blue")]
    captions = [f"a square of kind {number}" for number in range(6)]
    plain = pa.table({"image": images, "caption": captions, "kind": captions})
    pq.write_table(plain, tmp_path / "data/a.parquet", row_group_size=2)
    lists = pa.table(
        {"image": images[:2], "captions": [["a red thing", "a thing"], ["a green thing"]], "kind": ["x", "y"]}
    )
    pq.write_table(lists, tmp_path / "data/b.parquet")
    completed("score", str(tmp_path / "data"), "-e", "toy", "-o", str(tmp_path / "scores"))
    return tmp_path


def test_images_inside_parquet_shards_are_found_by_file_and_row(parquet_shards, tmp_path):
    rows = rows_with_images(tmp_path / "scores", None, None, [0, 4, 7, 8])
    assert {number: row.image for number, row in rows.items()} == {
        0: square("red"), 4: square("green"), 7: square("red"), 8: square("green"),
    }  # fmt: skip
    assert [row.caption for row in rows.values()][2:] == ["a thing", "a green thing"]
    told = invoke("report", str(tmp_path / "scores"), "-o", str(tmp_path / "page.html"))
    assert (told.exit_code, "no image" in told.stderr) == (0, False)
    (tmp_path / "data").rename(tmp_path / "moved")
    told = invoke("report", str(tmp_path / "scores"), "-o", str(tmp_path / "gone.html"))
    assert "data/a.parquet: the scored file does not exist; pass --images FOLDER, or --rows" in told.stderr
    rows = ("--rows", str(tmp_path / "moved"))
    told = invoke("report", str(tmp_path / "scores"), *rows, "-o", str(tmp_path / "again.html"))
    assert (told.exit_code, "no image" in told.stderr) == (0, False)
    shard = str(tmp_path / "scores/b.parquet")
    told = invoke("report", shard, *rows, "-o", str(tmp_path / "shard.html"))
    assert (told.exit_code, "no image" in told.stderr) == (0, False)


def test_the_page_of_a_selection_shows_images_inside_parquet(parquet_shards, tmp_path):
    rule = ["--keep", "0.5", "--report", str(tmp_path / "cut.html")]
    completed("select", str(tmp_path / "scores"), "-o", str(tmp_path / "kept.parquet"), *rule)
    page = (tmp_path / "cut.html").read_text()
    assert page.count('src="data:image') == page.count('<div class="card">') > 4
    (tmp_path / "data/a.parquet").unlink()
    told = invoke("select", str(tmp_path / "scores"), "-o", str(tmp_path / "kept.parquet"), *rule, "--overwrite")
    assert "a.parquet: the scored file does not exist</div>" in (tmp_path / "cut.html").read_text()
    single = str(tmp_path / "single.parquet")
    run = invoke("score", str(tmp_path / "data/b.parquet"), "-e", "toy", "-o", single)
    assert "the image bytes of column image are not copied, only their paths; for a subset with images" in run.stderr
    completed("select", single, "-o", str(tmp_path / "k.txt"), *rule, "--overwrite")
    assert 'src="data:image' in (tmp_path / "cut.html").read_text()
    told = invoke("select", single, "-o", str(tmp_path / "folder"), "--keep", "1")
    assert f"score the data into a folder (msdscore score {tmp_path}/data/b.parquet -o scores)" in str(told.exception)
