"""The public scorer: batches, streams, specs, image types and bounded memory."""

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from io import BytesIO

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

from counting import CountingEncoder, results_of
from msdscore import (
    ConfigError,
    ImageError,
    ImageLimits,
    InputError,
    Paper,
    Scorer,
    ScorerSpec,
    build_bank,
    load_encoder,
    save_bank,
)
from msdscore.encoders.base import TokenLayout
from msdscore.rows.rules import ColumnNames
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import Batch

COLOURS = ("red", "green", "blue", "white", "yellow")


def make_image(colour="red", size=(48, 32)):
    return Image.new("RGB", size, colour)


def test_score_batch_equals_single_scores():
    scorer = Scorer("toy")
    images, captions = [make_image(colour) for colour in COLOURS], [f"a {colour} square" for colour in COLOURS]
    scores = scorer.score_batch(images, captions)
    assert [*scores] == [scorer.score(image, text) for image, text in zip(images, captions, strict=True)]
    assert scores.msd.tolist() == scores.soft_msd.tolist()
    for name in ("msd", "soft_msd", "similarity", "coverage", "support"):
        values = getattr(scores, name)
        assert isinstance(values, np.ndarray)
        assert values.dtype == np.float64
        assert values.tolist() == [getattr(score, name) for score in scores]


def test_captions_of_one_owner_are_a_candidate_set():
    scorer, images, seen = Scorer("toy", batch_size=1), [make_image("red"), make_image("blue")], []
    captions, owner = ["red", "a blue square", "green", "blue"], [0, 1, 0, 1]
    scores = scorer.score_batch(images, captions, owner=owner, progress=lambda *now: seen.append(now))
    for number, image in enumerate(images):
        assert [*scores[number::2]] == [*scorer.rank(image, captions[number::2])]
    assert seen == [(0, 4), (2, 4), (4, 4)]
    assert scores.candidates.tolist() == [2, 2, 2, 2]
    assert f"Soft-MSD {scores[0].soft_msd:+.4f} (among 2)" in str(scores[0])
    alone = scorer.score(images[0], "red")
    assert str(alone).startswith(f"MSD {alone.msd:+.4f}  similarity")


def test_failed_item_of_a_batch_has_no_numbers():
    scores = Scorer("toy").score_batch([make_image(), b"no image", make_image()], ["red", "red", "\u200b"])
    assert (scores.failed, scores.ranking[0], scores[1].row()["msd"]) == (2, 0, None)
    assert [error is None for error in scores.errors] == [True, False, False]
    assert np.isnan(scores.msd).tolist() == [False, True, True]
    assert str(scores[1]).startswith("not scored: ")
    assert (scores.to_arrow()["msd"].null_count, scores.to_arrow()["error"].null_count) == (2, 1)
    assert scores.to_pandas()["msd"].isna().sum() == 2


ONE = make_image()
IS_ONE = "one image and one caption"


@pytest.mark.parametrize(
    ("images", "captions", "owner", "message"),
    [
        ([ONE], ["a", "b"], None, "got 1 and 2"),
        ([], [], None, "at least one image"),
        ([ONE], ["a", "b"], [0, 1], r"owner must .*\(0 to 0\)"),
        *[([ONE], ["a"], wrong, r"owner .*\(0 to 0\)") for wrong in ([1], [-1], [], [0, 0], [0.5], ["0"], 0)],
        *[(one, ["a"], [0], IS_ONE) for one in (ONE, "dog.jpg", [])],
        *[([ONE], captions, [0], IS_ONE) for captions in ("a", [])],
        *[
            (one, ["a", "b"], None, "rank")
            for one in (ONE, "a.png", b"x", {"path": "x"}, np.zeros((8, 8, 3), np.uint8))
        ],
    ],
)
def test_invalid_batches_are_rejected(images, captions, owner, message):
    with pytest.raises(ConfigError, match=message):
        Scorer("toy").score_batch(images, captions, owner=owner)
    with pytest.raises(ConfigError, match="at least one caption"):
        Scorer("toy").rank(ONE, {"a red square": 1})


def test_stream_reads_ahead_little_and_preserves_order():
    scorer, taken = Scorer("toy", batch_size=2), []

    def rows():
        for number in range(20):
            taken.append(number)
            colour = COLOURS[number % 5]
            yield (make_image(colour), colour) if number % 2 else {"image": make_image(colour), "caption": colour}

    stream = scorer.stream(rows())
    first = next(stream)
    assert first == scorer.score(make_image("red"), "red")
    assert len(taken) <= 5
    assert [score.caption for score in stream] == [COLOURS[number % 5] for number in range(1, 20)]
    with pytest.raises(ImageError, match="no image; .* found: picture, caption"):
        next(scorer.stream([{"picture": make_image(), "caption": "red"}], errors="raise"))
    with pytest.raises(ConfigError, match="expected a row .*got str"):
        next(scorer.stream(["dog.jpg"]))


def png(colour):
    buffer = BytesIO()
    make_image(colour).save(buffer, "PNG")
    return buffer.getvalue()


def table_of(kind, columns):
    if kind == "pandas":
        return pd.DataFrame(columns, index=range(10, 10 + len(columns["image"])))
    return pa.table(columns) if kind == "pyarrow" else pl.DataFrame(columns)


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "polars"])
def test_score_table_adds_columns(kind, tmp_path):
    make_image("blue").save(tmp_path / "blue.png")
    red = {"bytes": png("red"), "path": "red.png"}
    columns = {
        "n": [1, 2, 3, 4],
        "image": [red, {"bytes": None, "path": str(tmp_path / "blue.png")}, red, {"bytes": None, "path": "none.png"}],
        "caption": ["a red square", "a blue square", "a green square", "x"],
    }
    scorer = Scorer("toy")
    result = scorer.score_table(table_of(kind, columns), prefix="toy_")
    names = list(result.columns) if kind == "pandas" else result.column_names
    assert names[:4] == ["n", "image", "caption", "toy_similarity"]
    soft, errors = (list(result[name].tolist() if kind == "pandas" else result[name].to_pylist())
                    for name in ("toy_soft_msd", "toy_error"))  # fmt: skip
    ranked = scorer.rank(make_image("red"), ["a red square", "a green square"])
    assert [soft[0], soft[2]] == ranked.soft_msd.tolist()
    assert soft[1] == scorer.score(make_image("blue"), "a blue square").msd
    assert errors[3].startswith("none.png: no such file")
    if kind == "pandas":
        assert result.index.tolist() == [10, 11, 12, 13]
        assert result.attrs["signature"] == scorer.signature
    else:
        assert result.schema.metadata[b"msdscore"].decode() == scorer.signature


def test_score_table_accepts_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"image": [make_image("red")], "caption": ["a red square"]})
    rows = rows.cast_column("image", datasets.Image())
    scorer = Scorer("toy")
    result = scorer.score_table(rows)
    assert result["msd"].to_pylist() == [scorer.score(make_image("red"), "a red square").msd]


def test_invalid_tables_are_rejected():
    scorer, images = Scorer("toy"), [png("red")]
    with pytest.raises(ConfigError, match="DataFrame, .*got list"):
        scorer.score_table([{"image": png("red"), "caption": "red"}])
    with pytest.raises(InputError, match="no caption column; .*: image"):
        scorer.score_table(pa.table({"image": images}))
    with pytest.raises(ConfigError, match="columns msd already"):
        scorer.score_table(pa.table({"image": images, "caption": ["red"], "msd": [1.0]}))
    named = pa.table({"photo": images, "said": ["red"]})
    assert len(scorer.score_table(named, columns=ColumnNames(image="photo", caption="said"))) == 1
    cells = scorer.score_batch([{"bytes": None, "path": None}, {"url": "x"}], ["red", "red"])
    assert cells.errors[1] == "image must have bytes or a path, got the names url"


def test_scores_as_plain_values():
    scorer = Scorer("toy")
    scores = scorer.rank(make_image("red"), ["a red square", "a blue square"])
    value = scores[0].to_dict()
    assert json.loads(json.dumps(value)) == value
    assert (value["caption"], value["candidates"], value["signature"]) == ("a red square", 2, scorer.signature)
    assert value["soft_msd"] == scores.soft_msd[0]
    assert scores.to_dict() == {"signature": scorer.signature, "verdict_at": [0.2, 0.5], "scores": scores.rows()}


def test_distinct_images_and_captions_are_embedded_once():
    encoder = CountingEncoder()
    scorer = Scorer(encoder, batch_size=2)
    captions = [COLOURS[number % 2] for number in range(12)]
    scorer.score_batch([make_image(COLOURS[number % 5]) for number in range(12)], captions)
    assert sorted(encoder.captions) == ["green", "red"]
    assert sum(encoder.images) == 5


def test_rejected_caption_does_not_affect_others():
    pipeline = Pipeline(CountingEncoder())
    captions = (["red", "refused", "blue"], ["refused", "red"])
    batches = [Batch([make_image()], texts, [0] * len(texts)) for texts in captions]
    kinds = [[type(row).__name__ for row in scored] for scored in results_of(pipeline, batches)]
    assert kinds == [["Numbers", "CaptionError", "Numbers"], ["CaptionError", "Numbers"]]


def test_scores_slice_join_and_compare():
    scorer = Scorer("toy")
    scores = scorer.rank(make_image(), list(COLOURS))
    assert scores[:2] + scores[2:] == scores == replace(scores)
    assert scores[1:3] != scores[2:4]
    assert scores[1:3].captions == COLOURS[1:3]
    assert scores != replace(scores, warnings=(("odd",), *scores.warnings[1:]))
    assert scores != replace(scores, candidates=scores.candidates + 1)
    assert (scores + scores).msd.tolist() == [*scores.msd, *scores.msd]
    with pytest.raises(ConfigError, match="one signature .*got 2"):
        _ = scores + Scorer("toy", "long").rank(make_image(), ["red"])
    assert repr(scores).startswith("Scores(5 captions, 0 failed, best 'red', msd|enc:toy@1|")
    assert re.fullmatch(r"Scorer\('toy', msd\|enc:toy@1\|k:3,2\|.*device=cpu\)", repr(scorer))


def test_spec_builds_the_same_scorer_in_another_process(tmp_path):
    config = Paper(calibration="background", gate="support")
    bank = tmp_path / "bank.safetensors"
    save_bank(build_bank(load_encoder("toy"), config, [make_image(colour) for colour in COLOURS]), bank)
    scorer = Scorer("toy", config, bank=bank, limits=ImageLimits(max_pixels=10_000), batch_size=3, device="cpu")
    spec = pickle.loads(pickle.dumps(scorer.spec))
    assert spec == scorer.spec
    assert hash(spec) == hash(scorer.spec)
    (tmp_path / "spec").write_bytes(pickle.dumps(spec))
    make_image().save(tmp_path / "p.png")
    code = (
        "import pickle, sys\nfrom pathlib import Path\nfrom msdscore import Scorer\n"
        "scorer = Scorer.from_spec(pickle.loads(Path(sys.argv[1], 'spec').read_bytes()))\n"
        "print(scorer.signature, scorer.pipeline.limits.max_pixels, scorer.pipeline.batch_size)\n"
        "print(repr(scorer.score(Path(sys.argv[1], 'p.png'), 'a red dog').msd))"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    expected = [f"{scorer.signature} 10000 3", repr(scorer.score(make_image(), "a red dog").msd)]
    assert answer.stdout.splitlines() == expected


def test_spec_accepts_mappings_and_lists_and_rejects_loaded_objects():
    spec = ScorerSpec(encoder="toy", form="short", changes={"components": [5, 3], "alpha": 0.2})
    assert spec.changes == (("alpha", 0.2), ("components", (5, 3)))
    assert spec.build().form == Paper(components=(5, 3), alpha=0.2)
    assert spec.to_dict()["changes"] == {"alpha": 0.2, "components": (5, 3)}
    assert Scorer.from_spec(spec).spec is spec
    with pytest.raises(ConfigError, match="a loaded encoder or bank"):
        _ = Scorer(load_encoder("toy")).spec


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": 0.2}, r"Evidence and Paper, .*Evidence\(alpha=0.2\)"),
        ({"gate": "support"}, r"Paper, .*Paper\(gate='support'\)"),
        ({"balance": 1.0}, r"Evidence, .*Evidence\(balance=1.0\)"),
    ],
)
def test_setting_passed_as_encoder_option_is_reported(setting, message):
    with pytest.raises(ConfigError, match=message):
        Scorer("mini", **setting)


def test_swapped_image_and_caption_are_reported(tmp_path):
    make_image().save(tmp_path / "cat.png")
    scorer, file = Scorer("toy"), str(tmp_path / "cat.png")
    for call in (scorer.score, scorer.explain):
        with pytest.raises(ConfigError, match="got 'a cat' and .*"):
            call("a cat", file)
    with pytest.raises(ConfigError, match="swap them"):
        scorer.rank("a red square", ["a cat", "dog.jpg"])
    assert scorer.score(file, "a sign that says cat.png").error is None
    (tmp_path / "without_suffix").write_bytes((tmp_path / "cat.png").read_bytes())
    assert scorer.score(str(tmp_path / "without_suffix"), "dog.jpg").error is None
    with pytest.raises(ConfigError, match="swap them"):
        scorer.score("a" * 5000, "dog.jpg")  # too long for a file name


def test_warnings_of_the_encoder_are_in_the_score():
    class Doubting(CountingEncoder):
        def encode_texts(self, texts):
            batch = super().encode_texts(texts)
            return replace(
                batch, layout=tuple(TokenLayout(layout.spans, 1, 7, ("odd words",)) for layout in batch.layout)
            )

    scores = Scorer(Doubting()).rank(make_image(), ["a red dog", "blue"])
    assert scores[0].warnings == ["odd words", "cut: 7 tokens at the end were not read"]
    assert "warning, 'blue': odd words" in str(scores)
    assert scores.to_arrow().column("warnings").to_pylist()[0] == scores[0].warnings
    assert Scorer("toy").score(make_image(), "red").row()["warnings"] == []


LIMITED = """
import resource, sys
from pathlib import Path
from PIL import Image
from msdscore import Scorer

folder = Path(sys.argv[1])
scorer = Scorer("toy", batch_size=64)
scorer.score(Image.new("RGB", (32, 32), "red"), "a red square")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[2]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
scores = scorer.score_batch([folder / "large.png"] * 96, ["a red square"] * 96)
print(scores.failed)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and limits the address space")
def test_large_images_are_not_all_in_memory(tmp_path):
    # 96 decoded images of 16 megapixels are 4.6 GB; eight at a time, with temporary copies, are 1 GB.
    Image.new("RGB", (4000, 4000), "red").save(tmp_path / "large.png", compress_level=1)
    command = [sys.executable, "-c", LIMITED, str(tmp_path), "2600"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert answer.stdout.strip() == "0"


def test_failed_captions_are_not_candidates():
    scores = Scorer("toy").rank(make_image(), ["", "a red square", "a blue square"], errors="row")
    assert scores.failed == 1
    assert scores.candidates.tolist() == [2, 2, 2]
    assert scores.best in ("a red square", "a blue square")
    assert f"1 failed, best {scores.best!r}" in repr(scores)
    nothing = Scorer("toy").rank(make_image(), ["", " "], errors="row")
    assert nothing.candidates.tolist() == [0, 0]
    assert "best" not in repr(nothing)
    with pytest.raises(InputError, match="none of 2 captions .*the first"):
        _ = nothing.best


def test_duplicate_columns_are_rejected():
    names = ["image", "caption", "caption"]
    frame = pd.DataFrame([[make_image(), "red", "blue"]], columns=names)
    for table in (frame, pa.table([pa.array([value]) for value in ("x.png", "red", "blue")], names=names)):
        with pytest.raises(ConfigError, match="2 columns 'caption'"):
            Scorer("toy").score_table(table)


class Long(CountingEncoder):
    """The toy encoder with pooled vectors that are not normalised."""

    def encode_texts(self, texts):
        batch = super().encode_texts(texts)
        return replace(batch, pooled=10 * batch.pooled)


def test_pooled_vectors_must_have_unit_length():
    with pytest.raises(ConfigError, match="length 10 to 10, expected unit"):
        Scorer(Long()).score(make_image(), "a red square")


def test_images_are_ranked_for_one_caption():
    scorer = Scorer("toy")
    images = [Image.new("RGB", (64, 64), colour) for colour in ("blue", "red", "green")]
    ranked = scorer.rank_images([*images, b"no image"], "a red square")
    assert ranked.ranking[0] == 1
    assert ranked.best is images[1]
    assert ranked[:1].best is images[0]
    assert ranked.ranking[-1] == 3
    assert ranked.errors[3]
    alone = [scorer.score(make_image, "a red square") for make_image in images]
    assert ranked.columns["msd"][:3].tolist() == pytest.approx([score.msd for score in alone])
    share = np.exp(ranked.columns["similarity"][:3] / 0.2)
    u = 3 / 2 * (1 - (share / share.sum()).max())
    assert ranked.columns["uncertainty"][:3] == pytest.approx(u)
    with pytest.raises(ConfigError, match="at least one image"):
        scorer.rank_images([], "a red square")


def test_columns_of_a_table_are_lists_of_images_and_captions(tmp_path):
    for number, colour in enumerate(COLOURS[:2]):
        make_image(colour).save(tmp_path / f"{number}.png")
    paths, captions = [str(tmp_path / f"{number}.png") for number in (0, 1)], ["a red square", "a blue square"]
    expected = Scorer("toy").score_batch(paths, captions)
    assert expected.failed == 0
    for kind in (pd.Series, np.array, tuple, iter, pa.array, lambda items: pa.chunked_array([items])):
        assert Scorer("toy").score_batch(kind(paths), kind(captions)) == expected


def test_errors_are_raised_or_returned_by_every_call():
    scorer, images, captions = Scorer("toy"), [make_image(), b"no image"], ["a red square", "red"]
    assert scorer.score(b"no image", "red", errors="row").error
    assert scorer.rank(images[0], ["red", " "], errors="row").failed == 1
    calls = (
        lambda errors: scorer.rank_images(images, "red", errors=errors),
        lambda errors: scorer.score_batch(images, captions, errors=errors),
        lambda errors: scorer.score_table(pd.DataFrame({"image": images, "caption": captions}), errors=errors),
        lambda errors: list(scorer.stream(zip(images, captions, strict=True), errors=errors)),
        lambda errors: scorer.explain_batch(images, captions, errors=errors),
    )
    for call in calls:
        call("row")
        with pytest.raises(ImageError):
            call("raise")
    with pytest.raises(ConfigError, match="'ignore'"):
        scorer.score(images[0], "red", errors="ignore")


def test_another_caption_of_a_recent_image_does_not_encode_the_image_again(tmp_path):
    encoder = CountingEncoder()
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    scorer, plain = Scorer(encoder), Scorer("toy")
    for caption in ("a red square", "a dog"):
        assert scorer.score(tmp_path / "red.png", caption) == plain.score(tmp_path / "red.png", caption)
    scorer.explain(tmp_path / "red.png", "a blue dog")
    assert encoder.images == [1]
    Image.new("RGB", (64, 64), "blue").save(tmp_path / "red.png")
    assert scorer.score(tmp_path / "red.png", "a dog").msd == plain.score(tmp_path / "red.png", "a dog").msd
    assert encoder.images == [1, 1]


def test_scorer_is_pickled_by_its_spec():
    scorer = Scorer("toy", form="long")
    assert pickle.loads(pickle.dumps(scorer)).signature == scorer.signature
    with pytest.raises(ConfigError, match="built from a loaded encoder"):
        pickle.dumps(Scorer(load_encoder("toy")))
