"""Explanations of the evidence form: colours match the sign of terms in all outputs; missing words; remarks."""

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

import msdscore.explain
import msdscore.report
import msdscore_serve
from msdscore import ConfigError, Scorer
from msdscore.cli.explain import coloured
from msdscore.core.evidence import LENGTHS, ZERO
from msdscore.encoders.registry import load_encoder
from msdscore.explain.figure import figure_pixels
from msdscore.explain.html import explanation_page, snippet, summary
from msdscore.explain.look import DARK, css, legend, spans, tooltip, waterfall, waterfall_span, word_colour, word_limit
from msdscore.explain.maps import maps_of
from msdscore.forms.base import Unit
from msdscore.forms.evidence import Evidence
from msdscore.report.build import ReportOptions, build
from msdscore.scoring import vocabulary
from msdscore.text.words import PERSONS, content_words, stem
from msdscore_lab.bank.calibrate import calibrated_bank
from msdscore_serve.page import explanation_documents
from msdscore_serve.schema import ExplainQuery
from real_data import FOLDER, needs

DEV = FOLDER / "dev_sugarcrepe.jsonl"
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
NOTHING = word_limit([])


def painted(item):
    """Return the judged words with their hue; white has none."""
    hues = [(unit, *word_colour(unit, NOTHING)) for unit in item.units if unit.p_value is not None]
    return [(unit, role if strength else None) for unit, role, strength in hues]


def assert_colours_match_terms(items):
    """Assert that orange words lower the score and blue words raise it, where both have one calibration."""
    for item in items:
        for unit, hue in painted(item):
            # P-values depend on the length of the caption, terms do not.
            if len(content_words(item.score.caption)) >= LENGTHS[-1]:
                assert hue != "penalty" or unit.term < 0, (item.score.caption, unit)
                assert hue != "support" or unit.term > 0, (item.score.caption, unit)
            assert (hue == "penalty") == (unit.p_value < ZERO)


@pytest.fixture(scope="module")
def toy():
    pairs = [
        (Image.new("RGB", (32, 32), name), (f"a {name} square number {n}", f"{name} paint on a wall"))
        for n in range(10)
        for name in COLOURS
    ]
    encoder, form = load_encoder("toy"), Evidence(components=2)
    return Scorer(encoder, form, bank=calibrated_bank(encoder, form, *zip(*pairs, strict=True), background=20))


@pytest.fixture(scope="module")
def explained(toy):
    captions = ["a red square", "blue paint on a red wall, no green", "red and red again"]
    return toy.explain(Image.new("RGB", (64, 48), "red"), captions)


@cache
def mini():
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    return Scorer()


@cache
def photographs():
    data = pytest.importorskip("skimage.data")
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    scorer, cup = Scorer(), Image.fromarray(data.coffee())
    captions = ["a cup of coffee with a spoon on a wooden table", "a cup of coffee and a pizza next to a laptop"]
    return scorer.explain(cup, captions), scorer.explain(Image.fromarray(data.chelsea()), "a man surfs a wave")


def test_orange_words_lower_the_score_and_blue_ones_raise_it(explained):
    assert_colours_match_terms(explained)
    assert any(hue for item in explained for _, hue in painted(item))


def test_colours_of_words_on_photographs():
    (true, invented), wrong = photographs()
    assert_colours_match_terms([true, invented, wrong])
    assert {unit.text for unit, hue in painted(invented) if hue == "penalty"} == {"pizza", "laptop"}
    assert {"cup", "coffee"} <= {unit.text for unit, hue in painted(true) if hue == "support"}
    assert not true.doubtful
    assert (true.score.verdict, wrong.score.verdict) == ("on topic", "off topic")


@needs(DEV.name)
@pytest.mark.slow
def test_colours_match_the_sign_of_terms_on_300_captions():
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    rows = [json.loads(line) for line in DEV.read_text(encoding="utf-8").splitlines()][::21][:150]
    files = pq.read_table(DEV.with_suffix(".images.parquet"), filters=[("file_name", "in", [r["image"] for r in rows])])
    images = dict(zip(files["file_name"].to_pylist(), files["image"].to_pylist(), strict=True))
    scorer = Scorer()
    items = [
        item
        for row in rows
        for item in scorer.explain(data_of(images[row["image"]]), [row["caption"], row["negative_caption"]])
    ]
    assert len(items) == 300
    assert_colours_match_terms(items)
    true = [unit.p_value < ZERO for item in items[::2] for unit, _ in painted(item)]
    assert 0.05 < np.mean(true) < 0.16  # 10 % of the true words


def data_of(stored):
    return Image.open(io.BytesIO(stored["bytes"] if isinstance(stored, dict) else stored)).convert("RGB")


def unit_with(p_value):
    return Unit("dog", 0, 3, "word", True, (0,), term=0.0, evidence=0.0, p_value=p_value, probability=0.4)


@pytest.mark.parametrize(
    ("p_value", "role", "strength"),
    [
        (0.0, "penalty", 1.0),
        (0.01, "penalty", 1.0),
        (0.0999, "penalty", 0.5),
        (0.1, "support", 0.0),
        (0.499, "support", 0.0),
        (0.5, "support", 0.2),
        (1.0, "support", 0.7),
    ],
)
def test_thresholds_of_colours(p_value, role, strength):
    colour = word_colour(unit_with(p_value), NOTHING)
    assert colour[1] == pytest.approx(strength, abs=1e-3)
    assert colour[0] == role


def test_doubt_threshold_changes_words_colours_remarks_and_legend():
    image = Image.new("RGB", (64, 64), "red")
    scorer, caption = mini(), "a brown dog on green grass"
    usual = scorer.explain(image, caption)
    values = sorted(unit.p_value for unit in usual.ranked if unit.p_value is not None)
    assert values, "a caption with judged words"
    for doubt in (values[0] / 2, (values[0] + values[-1]) / 2 if len(values) > 1 else 0.5):
        why = scorer.explain(image, caption, doubt=doubt)
        below = [unit.text for unit in why.ranked if unit.p_value is not None and unit.p_value < doubt]
        assert [unit.text for unit in why.doubtful] == below
        assert str(why).count("likely wrong: ") + str(why).count("check: ") == len(below)
        orange = [
            unit.text
            for unit in why.words
            if word_colour(unit, 1.0, doubt)[0] == "penalty" and word_colour(unit, 1.0, doubt)[1]
        ]
        assert sorted(orange) == sorted(below)
        assert legend([why])[0][0] == f"likely wrong (p < {doubt:g}, probably false)"
        assert why.score.msd == usual.score.msd  # scores do not change
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match="threshold of doubt"):
            scorer.explain(image, caption, doubt=wrong)


def test_explain_batch_equals_single_pairs_and_returns_errors_in_order(tmp_path):
    colours = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    (tmp_path / "broken.png").write_bytes(b"no image")
    scorer = mini()
    captions = ["a red wall", "a dog", "a blue sky", " "]
    explained = scorer.explain_batch([colours[0], tmp_path / "broken.png", colours[1], colours[1]], captions)
    assert [type(why).__name__ for why in explained] == ["Explanation", "ImageError", "Explanation", "CaptionError"]
    for why, image in ((explained[0], colours[0]), (explained[2], colours[1])):
        alone = scorer.explain(image, why.caption)
        assert why.score.msd == pytest.approx(alone.score.msd, abs=1e-4)
        assert [unit.text for unit in why.ranked] == [unit.text for unit in alone.ranked]
        assert why.image.size == (64, 48)
    with pytest.raises(ConfigError, match="got 2 and 1"):
        scorer.explain_batch(colours, ["a red wall"])
    with pytest.raises(ConfigError, match="got 'red.png'"):
        scorer.explain_batch("red.png", ["a red wall"])
    with pytest.raises(ConfigError, match="got 'a red wall'"):
        scorer.explain_batch(colours[:1], "a red wall")
    people = ["a red brick wall"]
    known, without = scorer.explain_batch(colours, ["a red wall", "a blue sky"], references=[people, None])
    assert known.score.ref_msd == pytest.approx(
        scorer.explain(colours[0], "a red wall", people).score.ref_msd, abs=1e-4
    )
    assert [unit.references for unit in known.words if unit.text == "wall"] == [1]
    assert "ref_msd" not in without.score.columns
    with pytest.raises(ConfigError, match="references .*got 1 for 2"):
        scorer.explain_batch(colours, ["a red wall", "a blue sky"], references=[people])


def test_legend_is_the_same_in_all_outputs(explained):
    entries = legend(explained)
    assert [text for text, _, _ in entries] == [
        "likely wrong (p < 0.1, probably false)",
        "check (p < 0.1)",
        "neither",
        "supported (p ≥ 0.5)",
    ]
    assert entries[0][1] == css("penalty", 1.0)
    for text in (explanation_page(explained.items), snippet(explained.items)):
        assert "likely wrong (p &lt; 0.1, probably false)" in text
        assert "left out" not in text
    assert [tuple(maps) for maps in maps_of(explained)] == [("support",)] * len(explained)


def test_unjudged_words_have_a_reason(explained):
    first, second = ({unit.text: tooltip(unit) for unit in item.units} for item in explained.items[:2])
    assert first["a"] == "not judged: not a content word"
    assert second["green"] == "not judged: negated"
    assert second[","] == ""
    assert tooltip(explained[2].units[2]) == "not judged: repeated word"
    judged = next(unit for unit in explained[0].units if unit.text == "red")
    assert f"true with probability {judged.probability:.2f}" in tooltip(judged)
    assert f"; adds {judged.term:+.3f}" in tooltip(judged)
    assert "; penalty 0.25; adds" in tooltip(replace(judged, penalty=0.25))


def test_bar_goes_from_zero_to_the_score_on_one_scale(explained):
    low, high = waterfall_span(explained)
    for item in explained:
        steps = waterfall(item)
        negates = ["negation"] if item.score.negation else []
        assert [step.name for step in steps] == ["similarity", *negates, "precision", "information", "penalty"]
        assert steps[0].start == 0
        assert steps[-1].start + steps[-1].size == pytest.approx(item.score.soft_msd, abs=1e-6)
        assert all(low <= step.start + step.size <= high for step in steps)
        shown = summary(item, explained)
        assert [step["size"] for step in shown["steps"]] == [step.size for step in steps]
        for bar, step in zip(shown["steps"], steps, strict=True):  # in percent of the axis
            ends = sorted((100 * (value - low) / (high - low)) for value in (step.start, step.start + step.size))
            assert [bar["left"], bar["left"] + bar["width"]] == pytest.approx(ends)
        assert (shown["zero"], shown["end"]) == pytest.approx(
            tuple(100 * (value - low) / (high - low) for value in (0, item.score.soft_msd)), abs=1e-4
        )
        words = sum(unit.term or 0.0 for unit in item.units)
        assert item.score.similarity - item.score.negation + words == pytest.approx(item.score.msd, abs=1e-5)


def test_json_has_words_missing_words_and_suggestions():
    (_, invented), wrong = photographs()
    plain = json.loads(json.dumps(invented.to_dict()))
    pizza = next(word for word in plain["words"] if word["text"] == "pizza")
    assert pizza["p_value"] < ZERO
    assert 0 < pizza["probability"] < 0.9
    assert pizza["term"] < 0
    assert plain["words"][0]["judged"] is False
    assert plain["suggestions"] == []  # no word of their class is probable enough
    (cat,) = wrong.to_dict()["missing"]
    assert cat["word"] == "cat"
    assert set(cat) == {"word", "probability"}
    assert cat["probability"] >= vocabulary.LIKELY
    assert "coverage" not in plain["score"]


def test_suggestion_is_a_probable_word_of_the_same_class():
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    photograph = Image.fromarray(pytest.importorskip("skimage.data").chelsea())
    (suggestion,) = Scorer().explain(photograph, "a dog looking at the camera").suggestions
    assert (suggestion.word, [word.word for word in suggestion.instead]) == ("dog", ["cat"])
    assert suggestion.instead[0].probability >= vocabulary.LIKELIER


def test_a_caption_that_names_a_person_misses_no_other(monkeypatch):
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    monkeypatch.setattr(vocabulary, "LIKELY", 0.05)
    monkeypatch.setattr(vocabulary, "MISSING", 40)
    photograph = Image.fromarray(pytest.importorskip("skimage.data").astronaut())
    named, unnamed = Scorer().explain(photograph, ["a girl", "a flag"])
    persons = [{word.word for word in item.missing if stem(word.word) in PERSONS} for item in (named, unnamed)]
    assert persons[0] == set()
    assert persons[1]


@pytest.mark.parametrize(
    ("word", "other", "fits"),
    [
        ("dog", "cat", True), ("red", "blue", True), ("two", "three", True), ("sitting", "standing", True),
        ("two", "white", False), ("red", "large", False), ("running", "runs", False), ("sit", "sitting", False),
        ("standing", "stands", False), ("standing", "table", False), ("boxes", "box", False), ("ride", "riding", False),
        ("stopped", "stops", False), ("planned", "plan", False), ("kisses", "kissed", False), ("bees", "bee", False),
        ("cars", "car", False), ("stopped", "stored", True), ("bus", "bush", True), ("cats", "cars", True),
    ],
)  # fmt: skip
def test_other_classes_and_other_forms_are_not_suggested(word, other, fits):
    assert vocabulary.is_exchange(word, other) is fits


def test_remarks_list_words_in_doubt_and_missing_words():
    (_, invented), wrong = photographs()
    assert "probably missing from the caption: cat" in explanation_page((wrong,))
    text = explanation_page((invented,))
    for line in str(invented).splitlines()[2:]:
        assert line in text
    assert "likely wrong: pizza (p " in text
    assert str(invented).startswith(
        f"{invented.score.verdict} ({100 * invented.score.match:.0f} %) · likely wrong: pizza"
    )
    assert f"{invented.score.verdict} ({100 * invented.score.match:.0f} %)</b> · likely wrong: pizza" in text


def test_all_backends_have_the_same_colours(explained):
    pytest.importorskip("matplotlib")
    item, limit = explained[1], word_limit(explained)
    backs = [piece.back for piece in spans(item, limit) if piece.back]
    assert backs
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=200)
    screen.print(coloured(item, limit))
    for back in backs:
        assert back in explanation_page((item,))
        red, green, blue = bytes.fromhex(back[1:])
        assert f"48;2;{red};{green};{blue}" in screen.file.getvalue()
    drawn = {bytes(pixel).hex() for pixel in figure_pixels([item]).reshape(-1, 3)}
    assert {back[1:] for back in backs} <= drawn


def test_a_report_of_the_evidence_form(toy, tmp_path):
    table = toy.rank(Image.new("RGB", (64, 48), "red"), ["a red square", "blue paint", "a green wall"]).to_arrow()
    Image.new("RGB", (64, 48), "red").save(tmp_path / "red.png")
    table = table.append_column("image", [["red.png"] * 3])
    pq.write_table(table, tmp_path / "out.parquet")
    options = ReportOptions(images=tmp_path, show=2)
    summary = build(tmp_path / "out.parquet", tmp_path / "r.html", options, scorer=toy)
    assert (summary.rows, summary.explained, summary.unseen) == (3, 2, ())
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["parts"] == ["precision", "information"]
    assert [gallery["title"] for gallery in data["galleries"]] == [
        "Worst captions",
        "Most doubtful words",
        "Least informative captions",
    ]
    assert "likely wrong (p &lt; 0.1, probably false)" in text
    assert "coverage" not in data["names"]


@pytest.mark.parametrize("form", ["evidence", "short"])
def test_words_have_the_same_colours_in_all_outputs(explained, form):
    if form == "short":  # colours on one scale for all captions
        captions = ["a red square", "a blue square and a dog"]
        explained = Scorer("toy").explain(Image.new("RGB", (64, 48), "red"), captions)
    limit = word_limit(explained)
    documents = explanation_documents(explained, {}, len(explained), ExplainQuery())["explanations"]
    page = explanation_page(explained.items)
    for item, document in zip(explained, documents, strict=True):
        expected = {span.number: (span.back, span.ink) for span in spans(item, limit) if span.number >= 0}
        look = document["look"]["words"]
        assert {number: (word.get("back") or "", word.get("ink") or "") for number, word in enumerate(look)} == expected
        for (back, ink), word, unit in zip(expected.values(), look, item.units, strict=True):
            role, strength = word_colour(unit, limit)
            assert bool(back) == bool(word.get("dark_back"))
            if back:
                assert (back, word["dark_back"]) == (css(role, strength), css(role, strength, DARK))
                assert f"background:{back};background:light-dark({back},{word['dark_back']});color:{ink};" in page


def test_page_scripts_have_no_separate_palette_and_no_long_lines():
    folders = [Path(package.__path__[0]) / "assets" for package in (msdscore.explain, msdscore.report, msdscore_serve)]
    scripts = [
        path for folder in folders for path in folder.glob("*.js") if path.name not in ("preact.js", "parquet.js")
    ]
    assert len(scripts) > 8
    hues = [css(role, 1.0) for role in ("support", "penalty", "omission", "leaning")]
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert not [hue for hue in hues if hue in text.lower()], path.name
        assert max(map(len, text.splitlines())) <= 120, path.name
