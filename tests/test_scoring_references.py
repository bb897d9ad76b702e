"""Scores with references: parts against plain loops, calibration, exclusion, invalid input, text-only rows."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import invoke
from counting import CountingEncoder
from msdscore import ConfigError, ImageError, InputError, RowError, RunError, Scorer
from msdscore.core.embeddings import Embeddings, unit
from msdscore.core.evidence import ZERO
from msdscore.rows.files import ReferenceFile, open_rows
from msdscore.run.rows import score_file
from msdscore.scoring.references import (
    COVERAGE,
    KAPPA,
    NO_REFERENCES,
    SIMILARITY,
    SUPPORT,
    TEXT_ONLY,
    TRUE_WORDS,
    WEIGHTS,
    Background,
    agreed_words,
    background_captions,
    measure_references,
    p_value_with_references,
)

REFERENCES = ["a red box on a table", "a small red square", "something red"]


@pytest.fixture(scope="module")
def scorer():
    return Scorer("toy")


@pytest.fixture(scope="module")
def mini():
    return Scorer("mini")


def red(size=(48, 32)):
    return Image.new("RGB", size, "red")


def some_texts(count, seed=0, longest=5, dim=8):
    """Return embedded texts of different lengths with garbage in the padding."""
    generator = torch.Generator().manual_seed(seed)
    points = unit(torch.randn(count, longest, dim, generator=generator))
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    mask = torch.arange(longest) < lengths[:, None]
    return Embeddings(
        torch.where(mask[..., None], points, 99.0), mask, unit(torch.randn(count, dim, generator=generator))
    )


def density(point, tokens):
    """Return the log density of a point under a mixture with one component per token."""
    return math.log(sum(math.exp(KAPPA * float(point @ token)) for token in tokens) / len(tokens))


def test_support_and_coverage_equal_their_formulas():
    texts, behind = some_texts(4), some_texts(6, seed=1)
    tokens, others = ([batch.points[row][batch.mask[row]] for row in range(len(batch))] for batch in (texts, behind))
    columns, _ = measure_references(texts, texts.pooled, [(0, [1, 2, 3])], Background.of(behind))

    def joint(point, captions):
        return math.log(sum(math.exp(density(point, caption)) for caption in captions) / len(captions))

    sets = [[others[(start + step) % 6] for step in range(3)] for start in range(6)]
    support = [joint(y, tokens[1:]) - sum(joint(y, own) for own in sets) / 6 for y in tokens[0]]
    coverage = [
        sum(density(t, tokens[0]) - sum(density(t, own) for own in others) / 6 for t in reference) / len(reference)
        for reference in tokens[1:]
    ]
    assert columns["reference_support"][0] == pytest.approx(sum(support) / len(support), abs=1e-5)
    assert columns["reference_coverage"][0] == pytest.approx(sum(coverage) / 3, abs=1e-5)
    cosines = (texts.pooled[1:] @ texts.pooled[0]).double()
    assert columns["reference_similarity"][0] == pytest.approx(float(cosines.mean()), abs=1e-6)
    parts = [columns[f"reference_{name}"][0] for name in ("similarity", "support", "coverage")]
    total = SIMILARITY * parts[0] + SUPPORT * parts[1] + COVERAGE * parts[2]
    assert columns["reference_score"][0] == pytest.approx(total)


def test_scores_do_not_depend_on_the_batch():
    texts, behind = some_texts(5), Background.of(some_texts(6, seed=1))
    alone, _ = measure_references(texts, texts.pooled, [(0, [1, 2])], behind)
    among, _ = measure_references(texts, texts.pooled, [(3, [4]), (0, [1, 2]), (2, [0, 1, 3, 4])], behind)
    assert all(values[0] == pytest.approx(among[name][1], abs=1e-6) for name, values in alone.items())


def test_unrelated_references_do_not_raise_the_score():
    """Without a background of equally many captions, support would rise with the number of references."""
    texts, behind = some_texts(80, dim=16), Background.of(some_texts(64, seed=1, dim=16))
    pairs = {count: [(row, range(40, 40 + count)) for row in range(30)] for count in (1, 10, 30)}
    means = {
        count: torch.tensor(measure_references(texts, texts.pooled, own, behind)[0]["reference_support"])
        for count, own in pairs.items()
    }
    spread = float(means[1].std())
    assert all(abs(float(values.mean())) < 0.5 * spread for values in means.values())


def test_background_has_128_distinct_captions():
    assert len(set(background_captions())) == 128


def test_ref_msd_is_msd_plus_the_reference_score(scorer):
    plain, score = scorer.score(red(), "a red thing"), scorer.score(red(), "a red thing", references=REFERENCES)
    assert score.msd == plain.msd
    assert math.isnan(plain.ref_msd)
    assert "ref_msd" not in plain.row()
    assert score.ref_msd == pytest.approx(score.msd + score.reference_score)
    assert score.reference_count == 3
    assert "Ref-MSD" in str(score)


def test_signature_contains_weights_and_number_of_references(scorer, tmp_path):
    facts = f"|ref:{WEIGHTS}|nrefs:"
    three, one = (scorer.rank(red(), ["a red thing"], REFERENCES[:n]) for n in (3, 1))
    assert f"{facts}3|v:" in three.signature
    assert f"{facts}1-3|v:" in (three + one).signature
    plain = scorer.rank(red(), ["a red thing"])
    assert "ref:" not in plain.signature
    both = plain + three
    assert f"{facts}3|v:" in both.signature
    assert math.isnan(both.ref_msd[0])
    write_files(tmp_path)
    with open_rows(tmp_path / "rows.jsonl", references=ReferenceFile(tmp_path / "ids.json")) as source:
        for _ in range(2):  # finished the second time
            assert f"{facts}1-3|v:" in score_file(scorer.pipeline, source, tmp_path / "scores.jsonl").signature


def test_each_text_is_encoded_once():
    """The caption is encoded once for both sides."""
    encoder = CountingEncoder()
    scorer = Scorer(encoder)
    scorer.score(None, "a cat", ["a dog"])  # encodes the background
    encoder.captions.clear()
    scorer.score(red(), "a red thing", references=REFERENCES)
    assert sorted(encoder.captions) == sorted(["a red thing", *REFERENCES])


def test_invisible_characters_change_nothing(mini):
    plain, hidden = (mini.score(None, text, ["a dog on a lawn"]) for text in ("a dog runs", "a d\u200bog runs"))
    assert hidden.reference_score == plain.reference_score
    own = mini.score(None, "a d\u200bog runs", ["a dog runs", "a puppy"])
    assert own.reference_count == 1


@pytest.mark.parametrize("name", ["toy", "mini"])
def test_references_determine_the_ranking_in_every_form(name, request):
    """An image of one colour does not distinguish dogs from boats; references do."""
    scorers = [request.getfixturevalue("mini"), Scorer("mini", "short")] if name == "mini" else [Scorer("toy", "long")]
    for scorer in scorers:
        captions = ["a boat on a lake", "a dog on a lawn"]
        ranked = scorer.rank(red(), captions, references=["a puppy on the grass", "a small dog outside"])
        assert ranked.best == "a dog on a lawn" or name == "toy"
        assert ranked.ranking == tuple(sorted((0, 1), key=lambda index: -ranked.ref_msd[index]))


def test_a_caption_is_not_compared_with_itself(scorer):
    others = scorer.score(red(), "a red thing", references=REFERENCES)
    own = scorer.score(red(), "a red thing", references=["A red thing.", *REFERENCES])
    assert own.ref_msd == pytest.approx(others.ref_msd)
    assert own.warnings == ["1 of 4 references ignored: the caption itself"]


def test_the_caption_as_its_only_reference_has_no_ref_msd(scorer):
    score = scorer.score(red(), "a red thing", references=["a red thing"])
    assert math.isnan(score.ref_msd)
    assert (score.row()["ref_msd"], score.reference_count) == (None, 0)
    assert score.warnings[-1] == NO_REFERENCES
    assert "|nrefs:0|" in score.signature
    assert str(score).startswith("MSD ")
    batch = scorer.score_batch([red()], ["a red thing"], references=[["a red thing"]])
    assert math.isnan(batch[0].ref_msd)
    assert math.isnan(scorer.explain(red(), "a red thing", ["a red thing"]).score.ref_msd)


@pytest.mark.parametrize("references", [7, True, {"a": "dog"}, b"a dog", "[a dog", "['a dog' 'a cat']"])
def test_references_that_are_no_texts_are_an_error_of_the_row(scorer, references):
    with pytest.raises(RowError, match="references (must be|begins like|has texts without)"):
        scorer.score(red(), "a dog", references)
    assert "references" in scorer.score(red(), "a dog", references, errors="row").error


def test_references_may_be_lists_written_as_text(scorer):
    expected = scorer.score(red(), "a red box", REFERENCES)
    assert scorer.score(red(), "a red box", json.dumps(REFERENCES)) == expected
    assert scorer.score(red(), "a red box", str(REFERENCES)) == expected  # as pandas writes lists into CSV files
    assert scorer.score(red(), "a red box", "a box") == scorer.score(red(), "a red box", ["a box"])


def test_references_that_the_encoder_cannot_read_are_ignored_and_reported(scorer):
    known = scorer.score(red(), "a red box", ["a red wall"])
    partly, unread = (scorer.score(red(), "a red box", listed) for listed in (["a red wall", "\u200b"], ["\u200b"]))
    assert partly.ref_msd == known.ref_msd
    assert "1 of 2 references ignored: empty or not text" in partly.warnings
    assert np.isnan(unread.ref_msd)
    assert unread.msd == known.msd
    assert any("1 of 1 references ignored" in warning for warning in unread.warnings)


def test_reference_in_another_language_is_warned_about(mini):
    foreign = "Ein kleiner Hund läuft mit einem Ball über die grüne Wiese hinter dem Haus"
    score = mini.score(red(), "a dog runs", references=["a small dog on the grass", foreign])
    assert score.reference_count == 2
    assert any(warning.startswith("references: ") for warning in score.warnings)


def test_only_texts_are_compared_without_an_image(scorer):
    near, far = (scorer.score(None, caption, REFERENCES) for caption in ("a red square", "a blue circle"))
    assert near.reference_score > far.reference_score
    assert near.row()["msd"] is None
    assert near.row()["ref_msd"] is None
    assert TEXT_ONLY in near.warnings
    with_image = scorer.score(red(), "a red square", references=REFERENCES)
    assert with_image.reference_score == pytest.approx(near.reference_score)


def test_batches_have_one_list_of_references_per_image(scorer):
    images, captions = [red(), red((32, 32))], ["a red thing", "a blue thing"]
    scores = scorer.score_batch(images, captions, references=[REFERENCES, None])
    assert scores.ref_msd[0] == pytest.approx(scorer.score(images[0], captions[0], REFERENCES).ref_msd)
    assert math.isnan(scores.ref_msd[1])
    lone = scorer.rank(red(), captions, REFERENCES)
    assert lone.reference_count.tolist() == [3, 3]
    with pytest.raises(ConfigError, match="got 1 for 2 images"):
        scorer.score_batch(images, captions, references=[REFERENCES])


def write_files(folder):
    """Write rows of every kind, and the references of the red image in three formats."""
    for colour in ("red", "blue"):
        Image.new("RGB", (48, 48), colour).save(folder / f"{colour}.png")
    rows = [
        {"image": "red.png", "caption": "a red square"},
        {"image": "blue.png", "caption": "a blue box", "references": ["a blue thing", "A blue box."]},
        {"caption": "a red square", "references": REFERENCES},
        {"image": "gone.png", "caption": "a red square", "references": REFERENCES},
        {"image": "blue.png", "caption": "a blue box", "references": []},
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    notes = [{"id": number, "image_id": 7, "caption": text} for number, text in enumerate(REFERENCES)]
    coco = {"images": [{"id": 7, "file_name": "red.png"}], "annotations": notes}
    (folder / "coco.json").write_text(json.dumps(coco))
    (folder / "ids.json").write_text(json.dumps({"red": REFERENCES}))
    (folder / "lines.jsonl").write_text(json.dumps({"image": "photos/red.png", "references": REFERENCES}))


def test_the_command_takes_references_of_one_image(scorer, tmp_path):
    red().save(tmp_path / "red.png")
    own = [part for text in REFERENCES for part in ("--reference", text)]
    call = ["score", str(tmp_path / "red.png"), "a red square", *own, "-e", "toy", "--json"]
    answer = json.loads(invoke(*call).stdout)
    expected = scorer.rank(tmp_path / "red.png", ["a red square"], REFERENCES)
    assert answer["signature"] == expected.signature
    assert answer["scores"][0]["ref_msd"] == pytest.approx(float(expected.ref_msd[0]))
    rows = invoke("score", str(tmp_path / "rows.jsonl"), "--reference", "a dog", "-e", "toy")
    assert "--reference is for one image and its captions" in str(rows.exception)


def scored_file(scorer, folder, references):
    with open_rows(folder / "rows.jsonl", references=ReferenceFile(folder / references)) as source:
        score_file(scorer.pipeline, source, folder / "scores.jsonl")
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["coco.json", "ids.json", "lines.jsonl"])
def test_files_of_references_are_joined_by_image(scorer, tmp_path, name):
    write_files(tmp_path)
    red_row, blue, texts, gone, none = scored_file(scorer, tmp_path, name)
    expected = scorer.score(tmp_path / "red.png", "a red square", REFERENCES)
    assert red_row["ref_msd"] == pytest.approx(expected.ref_msd)
    assert blue["reference_count"] == 1
    assert blue["warnings"] == ["1 of 2 references ignored: the caption itself"]
    assert texts["reference_score"] == pytest.approx(expected.reference_score)
    assert (texts["msd"], texts["error"], texts["warnings"]) == (None, None, [TEXT_ONLY])
    assert "no such file" in gone["error"]
    assert (none["ref_msd"], none["warnings"]) == (None, [])  # an empty list is none


def test_finished_run_with_references_detects_other_images_and_references(scorer, tmp_path):
    write_files(tmp_path)
    assert scored_file(scorer, tmp_path, "ids.json") == scored_file(scorer, tmp_path, "ids.json")
    Image.new("RGB", (48, 48), "green").save(tmp_path / "blue.png")
    with pytest.raises(RunError, match="image files were changed"):
        scored_file(scorer, tmp_path, "ids.json")
    (tmp_path / "ids.json").write_text(json.dumps({"red": ["a green circle"]}))
    with pytest.raises(RunError, match="its input was changed"):
        scored_file(scorer, tmp_path, "ids.json")


def found(tmp_path, content, *rows, **options):
    path = tmp_path / "references.json"
    path.write_text(json.dumps(content))
    references = ReferenceFile(path, **options)
    return [references.find(row) for row in rows]


def test_ids_of_annotations_are_not_ids_of_images(tmp_path):
    notes = [{"id": 8, "image_id": 7, "caption": "seven"}, {"id": 7, "image_id": 8, "caption": "eight"}]
    files = [{"id": number, "file_name": f"{number}.jpg"} for number in (7, 8)]
    for content in ({"images": files, "annotations": notes}, notes):
        rows = [{"image_id": 7, "id": 8}, {"image_id": 8.0}, {"id": 7, "image": "9.jpg"}, {"id": 7, "image": None}]
        assert found(tmp_path, content, *rows) == [["seven"], ["eight"], None, None]


def test_references_of_images_in_different_folders_are_not_merged(tmp_path):
    content = [{"image": f"{folder}/1.jpg", "references": [folder]} for folder in "ab"]
    rows = [{"image": "a/1.jpg"}, {"image": "/data/b/1.png"}, {"image": "c/1.jpg"}]
    assert found(tmp_path, content, *rows) == [["a"], ["b"], None]
    with pytest.raises(ImageError, match=r"a/1\.jpg and b/1\.jpg"):
        found(tmp_path, content, {"image": "1.jpg"})
    with pytest.raises(InputError, match=r"a/1 or b/1"):
        found(tmp_path, {"1": ["one"]}, {"image": "a/1.jpg"}, {"image": "b/1.jpg"})


def test_references_are_found_by_name_without_suffix(tmp_path):
    content = {"red": ["r"], "a.b": ["dot"], "c.png": ["c"]}
    rows = [{"image": "red.jpg"}, {"image": "x/a.b.jpg"}, {"image": "c.png"}, {"image": "c.jpg"}, {"id": "red"}]
    assert found(tmp_path, content, *rows) == [["r"], ["dot"], ["c"], ["c"], ["r"]]


def test_ambiguous_references_are_an_error_of_the_row(tmp_path):
    lines = [{"image": "a/red.png", "references": ["x"]}, {"image": "b/red.png", "references": ["y"]}]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "rows.jsonl").write_text('{"image": "red.png", "caption": "a red square"}')
    with open_rows(tmp_path / "rows.jsonl", references=ReferenceFile(tmp_path / "lines.jsonl")) as source:
        assert "a/red.png and b/red.png" in str(next(source.read()).error)


def test_invalid_reference_file_is_rejected(tmp_path):
    (tmp_path / "odd.jsonl").write_text('{"photo": "red.png", "words": ["a"]}')
    with pytest.raises(InputError, match="item 1: expected an image"):
        ReferenceFile(tmp_path / "odd.jsonl")
    for content in ("{}", '{"red.png": []}', '{"red.png": [null]}', "[]"):
        (tmp_path / "empty.json").write_text(content)
        with pytest.raises(InputError, match="no references in this file"):
            ReferenceFile(tmp_path / "empty.json")


def test_explanation_lists_words_in_references(mini):
    """A similar word does not count as mentioned: "brown" is not, although it is close to "dog"."""
    people = ["a dog on the sand", "a puppy runs", "a dog plays with a ball", "a dog and a ball"]
    plain, item = (mini.explain(red(), "a brown dog runs on the beach", references=own) for own in (None, people))
    counts = {unit.text: unit.references for unit in item.words if unit.content}
    assert counts["dog"] == 4  # the puppy is one
    assert counts["brown"] == 0
    assert counts["runs"] >= 1
    before, after = ({unit.text: unit.p_value for unit in own.words} for own in (plain, item))
    assert after["dog"] > max(before["dog"], ZERO)
    assert after["brown"] < before["brown"]
    assert [(word.word, word.references) for word in item.missing][:1] == [("ball", 2)]
    assert "in the references too: dog (4 of 4)" in str(item)
    assert "in no reference: brown" in str(item)
    assert "words are judged by the image and its references together" in str(item)
    assert "references" not in str(plain)
    plain_values = item.to_dict()
    assert next(word for word in plain_values["words"] if word["text"] == "dog")["references"] == 4
    assert plain_values["score"]["ref_msd"] == pytest.approx(item.score.ref_msd)
    assert "ref_msd" not in plain.to_dict()["score"]


@pytest.mark.parametrize("count", [1, 5, 30])
def test_p_values_of_true_words_are_uniform_with_references(count):
    """With independent image and references, the rate below each level equals the level."""
    rng = np.random.default_rng(0)
    having = rng.binomial(count, rng.beta(*TRUE_WORDS, size=4000))
    alone = rng.uniform(size=4000)
    values = [p_value_with_references(p, k, count) for p, k in zip(alone.tolist(), having.tolist(), strict=True)]
    for level in (0.05, 0.1, 0.5):
        assert np.mean(np.array(values) < level) == pytest.approx(level, abs=3 * math.sqrt(level * (1 - level) / 4000))


def test_more_references_for_a_word_lower_its_doubt():
    for count in (1, 5, 1000):
        rising = [p_value_with_references(0.1, having, count) for having in range(count + 1)]
        assert all(first < second for first, second in pairwise(rising))
        assert rising[0] < 0.1 < rising[-1]
    assert p_value_with_references(0.3, 0, 0) == pytest.approx(0.3)


def test_agreed_words_occur_in_several_references():
    assert agreed_words(["a black dog", "two dogs, no cat", "a cat"]) == [("dog", "dog", 2)]
    assert [word for _, word, _ in agreed_words(["A Dog runs"])] == ["dog", "runs"]
