"""Warnings of rows: unreadable or uninformative captions, and tiny images."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from msdscore import Scorer, load_encoder
from msdscore.core.evidence import verdict, verdict_ranges
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import built_in_row
from msdscore.encoders.tokens import MOST_TOKENS, TextSettings, Tokens, pack
from msdscore.forms.base import Numbers, numbers_of
from msdscore.forms.paper import Paper
from msdscore.io.images import sample_image
from msdscore.scoring.results import why_missing
from msdscore.scoring.rows import scores_of
from msdscore.text.captions import FORM_WARNINGS, form_warnings, tokens
from msdscore.text.normal import clean
from msdscore.text.warnings import UNFAMILIAR, guard_reward, mark_warnings, text_warnings, token_warnings
from msdscore.text.words import segment
from real_data import FOLDER, needs
from tiny_clip import make_tiny_clip

ENGLISH = [
    "a dog runs on the beach",
    "dog",
    "A street sign reading 'Rue de la Paix'",
    "the café in le marais",
    "red car",
    "golden retriever",
    "IMG_2033.jpg",
    "Toyota Corolla 2010",
    "m m m mm m",
    "a family: 👨‍👩‍👧",
    "Le Mans race",
    "a plate of spaghetti alla carbonara",
    "two tennis players at Roland Garros",
    "giraffe zebra elephant",
    "pizza margherita",
    "an espresso macchiato on a table",
    "A man waterskies .",
    "",
    "12 !?",
]
OTHERS = [
    "ein Hund läuft am Strand",
    "un chien court sur la plage",
    "un perro corre en la playa",
    "il gatto è sul tavolo",
    "een hond rent op het strand",
    "En hund springer på stranden",
    "犬が走る",
    "كلب على الشاطئ",
    "собака на пляже",
    "Eine Katze schaut in die Kamera",
    "gros plan d'un chat",
    "kucing melihat ke kamera",
    "schwarze Katze",
]
FOREIGN = json.loads((Path(__file__).parents[1] / "perf" / "foreign_captions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ENGLISH)
def test_english_has_no_warning(text):
    assert text_warnings(text, english=True) == ()


@pytest.mark.parametrize("text", OTHERS)
def test_other_languages_are_warned_about_for_english_encoders(text):
    assert text_warnings(text, english=True) == ("not English",)
    assert text_warnings(text, english=False) == ()


@pytest.mark.parametrize(
    ("half", "most"), [("chosen_on", 0), ("held_out", 0), ("shared_words", 7), ("written_after", 2)]
)
def test_short_captions_of_many_languages_are_detected(half, most):
    captions = [caption for language in FOREIGN[half].values() for caption in language]
    missed = [caption for caption in captions if "not English" not in text_warnings(caption, english=True)]
    assert len(missed) <= most, missed


LISTS = [
    ("dog beach ball sand ocean running brown wave sky happy", "list of words"),
    ("dog, beach, ball, sand, ocean, wave, sky, bird, boat", "list of words"),
    ("a photo of a dog and a beach and a ball and a wave", "list of words"),
    ("A dog runs on the beach . ball sand ocean wave bird boat", "list of words"),
    ("the with dog beach on runs a ball a brown in mouth its", "shuffled words"),
    ("a a beach brown dog in its mouth on runs the with", "shuffled words"),
    ("A dog runs on the beach . " * 3, "repeated"),
    ("A dog runs on the beach " * 2, "repeated"),
]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("a dog\u200b runs on the beach", "invisible characters"),
        ("a d\u200dog with a hat", "invisible characters"),
        ("\u202ethe dog", "invisible characters"),
        ("!!!", "no words"),
        ("… — ?", "no words"),
        ("As an AI language model, I cannot see images.", "assistant boilerplate"),
        ("I'm sorry, but I can't help with the image.", "assistant boilerplate"),
        ("I am unable to see the image above.", "assistant boilerplate"),
        ("Sure! Here is a short caption for the photo: a dog", "assistant boilerplate"),
        *LISTS,
    ],
)
def test_texts_that_are_not_captions_are_warned_about(text, warning):
    assert text_warnings(text, english=True) == text_warnings(text, english=False) == (warning,)


@pytest.mark.parametrize(
    "text", ["", "🐕", "a sign that says I am sorry", "a man with a caption on his shirt", "می‌خواهم"]
)
def test_valid_captions_have_no_warning(text):
    assert text_warnings(text, english=False) == ()


@pytest.mark.parametrize("text", ["the", "a", "There is one of these."])
def test_captions_of_stop_words_are_warned_about(text):
    assert text_warnings(text, english=True) == text_warnings(text, english=False) == ("only stop words",)


def test_unknown_words_are_listed_once_and_shortened():
    text = "aa bb cc dd aa tusks xqzvb"
    spans = [(0, 2), (3, 5), (6, 8), (9, 11), (12, 14), (15, 17), (17, 19), (19, 20)]
    spans += [(21 + place, 22 + place) for place in range(5)]
    ids = [1, 1, 7, 1, 1, *range(20, 28)]
    assert token_warnings(text, ids, spans, unknown=1) == ("unknown words: aa, bb, dd, …",)
    assert token_warnings(text, ids, spans, unknown=None) == ("unknown words: xqzvb",)


@given(st.text(max_size=60))
def test_any_text_is_accepted(text):
    known = {
        "not English",
        "only stop words",
        "no words",
        "invisible characters",
        "assistant boilerplate",
        "stray marks",
    }
    known |= {"look-alike letters", *FORM_WARNINGS}
    assert set(text_warnings(text, english=True)) <= known


def test_word_order_is_not_checked_in_other_languages():
    text = "een bruine hond rent met een bal in zijn bek over het strand"
    assert text_warnings(text, english=False) == ()
    assert text_warnings(f"{text}. " * 3, english=False) == ("repeated",)


@needs("train_coco.jsonl", "dev_thumb.jsonl")
def test_rate_of_false_warnings_about_form():
    def rows(name):
        return map(json.loads, (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())

    people = [caption for row in rows("train_coco") for caption in row["captions"]]
    machines = [row["caption"] for row in rows("dev_thumb")]
    wrong = [caption for caption in people + machines if form_warnings(tokens(caption.lower()), english=True)]
    assert len(wrong) <= (len(people) + len(machines)) / 200, wrong[:9]


INVISIBLE = ["\ufe0f", "\u034f", "\u200b", "\U000e0061", "\x00", "\u0338", "\u2063", "\u180e"]
plain_texts = st.text("abcdefgh ,.'-AZ", min_size=1, max_size=40)


@given(plain_texts, st.sampled_from(INVISIBLE), st.data())
def test_invisible_characters_do_not_change_words_and_tokens(text, mark, data):
    places = data.draw(st.sets(st.integers(1, len(text)), min_size=1))
    marked = "".join(text[at : at + 1] + mark * (at + 1 in places) for at in range(len(text)))
    found = clean(marked)
    assert found is not None
    assert found.text == text
    # Every character maps to the original caption.
    assert [marked[start] for start in found.starts[:-1]] == list(text)
    words, given_words = segment(text), segment(marked)
    assert [(word.text, word.stem, word.content) for word in words] == [
        (word.text.replace(mark, ""), word.stem, word.content) for word in given_words
    ]
    assert all(marked[word.start : word.end] == word.text for word in given_words)
    assert mark_warnings(marked)


@given(st.text(max_size=40))
def test_cleaning_is_idempotent_with_ordered_positions(text):
    found = clean(text)
    if found is None:
        assert mark_warnings(text) == ()
        return
    again = clean(found.text)
    assert again is None or again.text == found.text or len(again.text) < len(found.text)
    assert len(found.starts) == len(found.text) + 1
    assert list(found.starts) == sorted(found.starts)
    assert found.starts[-1] == len(text)


@pytest.mark.parametrize("encoder", ["toy", "mini", "clip"])
def test_invisible_characters_do_not_change_a_score(encoder, tmp_path):
    if encoder == "mini":
        pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    scorer = Scorer(str(make_tiny_clip(tmp_path / "clip")) if encoder == "clip" else encoder, device="cpu")
    image, caption = Image.new("RGB", (64, 64), "red"), "a red square on the wall"
    plain = scorer.score(image, caption)
    for mark in INVISIBLE:
        marked = scorer.score(image, mark.join(caption))
        assert marked.msd == plain.msd, ascii(mark)
        assert marked.warnings[:1] in [["invisible characters"], ["stray marks"]]


def test_word_spans_refer_to_the_original_caption():
    caption = "\u200b".join("a blue square")
    words = [term.text for term in Scorer("toy").explain(Image.new("RGB", (64, 64), "red"), caption).words]
    assert [word.replace("\u200b", "") for word in words] == ["a", "blue", "square"]


def test_accents_do_not_change_the_judgement_of_a_word():
    assert [word.stem for word in segment("\u0301".join("two dogs"))] == ["two", "dog"]


@pytest.mark.parametrize("text", ["a dоg on the beach", "a ｄog on the beach", "a d𝐨g on the beach"])
def test_mixed_scripts_inside_a_word_are_warned_about(text):
    assert "look-alike letters" in text_warnings(text, english=True)


@pytest.mark.parametrize(
    "text", ["a T恤 shirt on the bed", "5 μm of dust on the lens", "a β-carotene bottle on the table"]
)
def test_other_scripts_next_to_words_have_no_warning(text):
    assert "look-alike letters" not in text_warnings(text, english=True)


@pytest.mark.parametrize(
    "text", ["I ❤️ dogs on the beach", "a family 👨‍👩‍👧 on the beach", "می‌خواهم", "a key 1️⃣ on the wall", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
)
def test_joiners_of_emoji_and_scripts_are_preserved(text):
    assert clean(text) is None
    assert mark_warnings(text) == ()


@needs("train_coco2017.jsonl")
def test_rate_of_false_warnings_on_english_captions():
    with (FOLDER / "train_coco2017.jsonl").open(encoding="utf-8") as lines:
        captions = [
            caption for _, line in zip(range(2000), lines, strict=False) for caption in json.loads(line)["captions"]
        ]
    warned = [caption for caption in captions if set(text_warnings(caption, english=True)) - FORM_WARNINGS]
    assert len(warned) <= len(captions) // 2000, warned[:9]


def test_registry_states_which_encoders_read_only_english():
    assert built_in_row("mini").languages == ("en",)
    assert built_in_row("siglip2-base").languages == ("multilingual",)
    assert built_in_row("no/such") is None


def test_mini_writes_warnings_to_rows(tmp_path):
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    encoder = load_encoder("mini", device="cpu")
    captions = ["a dog", "犬が走る", "a 🐕 runs", "the", "xqzvbn"]
    expected = [(), ("not English", "unknown words: 犬が走る"), ("unknown words: 🐕",), ("only stop words",)]
    found = [layout.warnings for layout in encoder.encode_texts(captions).layout]
    assert found == [*expected, ("unknown words: xqzvbn",)]
    scores = Scorer(encoder).rank(Image.new("RGB", (20, 300)), captions)
    image = [UNFAMILIAR, "tiny image: 20 x 300 pixels"]
    assert scores[0].warnings == image
    assert scores[3].warnings == ["only stop words", "no judged word", *image]
    cut = Scorer("mini", long_text="cut").score(Image.new("RGB", (64, 64)), "a dog runs. " * 200)
    assert cut.warnings == ["repeated", "cut: 290 tokens at the end were not read", UNFAMILIAR]


def test_folder_with_unknown_languages_only_warns_about_stop_words(tmp_path):
    encoder = load_encoder(str(make_tiny_clip(tmp_path / "clip")), device="cpu")
    found = encoder.encode_texts(["ein Hund läuft am Strand", "the"])
    assert [layout.warnings[:1] for layout in found.layout][1] == ("only stop words",)
    assert "not English" not in found.layout[0].warnings


def test_tiny_images_are_warned_about():
    encoder = load_encoder("toy")
    layout = prepare_and_encode(encoder, [Image.new("RGB", (31, 500)), Image.new("RGB", (32, 32))]).layout
    assert [item.warnings for item in layout] == [("tiny image: 31 x 500 pixels",), ()]


def words(count):
    text = " ".join(["word"] * count)
    return Tokens(text, (5,) * count, tuple((5 * n, 5 * n + 4) for n in range(count)))


def test_very_long_text_is_truncated_with_a_warning():
    settings = TextSettings(context=77, prefix=(1,), suffix=(2,), pad=0)
    whole, book = pack([words(MOST_TOKENS), words(MOST_TOKENS + 9)], settings).layout
    assert (len(whole.spans), whole.cut) == (len(book.spans), 0)
    assert book.cut == 9
    # A longer context than the limit is used in full.
    (long,) = pack([words(MOST_TOKENS + 9)], TextSettings(context=9000, prefix=(), suffix=(), pad=0)).layout
    assert (long.windows, long.cut) == (1, 0)


def test_list_of_words_has_no_verdict_and_says_why():
    warnings = ("list of words",)
    scores = Scorer("toy").rank(Image.new("RGB", (64, 64), "red"), ["a red square"])
    assert verdict(0.9) == "on topic"
    assert [verdict(match, withheld=True) for match in (0.9, 0.5, 0.1, None)] == [None] * 4
    values = {"similarity": 0.5, "msd": 0.5, "length": 3, "windows": 1}
    rows = [Numbers({**values, "match": 0.9}, ("x", *own)) for own in (warnings, ())]
    table = scores_of(Scorer("toy").pipeline, ["a"] * 3, [*rows, Numbers(values)], [1, 2, 3]).to_arrow()
    assert table["verdict"].to_pylist() == [None, "on topic", None]
    scores = replace(scores, columns={**scores.columns, "match": np.array([0.9])})
    known, listed = scores[0], replace(scores, warnings=(("x", *warnings),))[0]
    assert (known.with_doubtful({}).row()["word_notes"], listed.with_doubtful({}).row()["word_notes"]) == (
        ["no word stands out"], [],
    )  # fmt: skip
    assert (known.verdict, listed.verdict, listed.withheld) == ("on topic", None, warnings)
    assert (known.headline, listed.headline) == ("on topic (90 %)", "no verdict (90 %): list of words")
    assert str(listed).startswith("no verdict (90 %): list of words\n")
    found = {"blue": "check", "giraffe": "likely wrong", "hat": "check", "cup": "check", "spoon": "check"}
    assert known.with_doubtful({}).headline == "on topic (90 %) · no word stands out"
    noted = known.with_doubtful(found).headline
    assert noted == "on topic (90 %) · likely wrong: giraffe · check: blue, hat, cup and 1 more"


def test_caption_without_a_judged_word_has_no_verdict_and_says_why():
    scorer = Scorer()
    for caption in ("the of and", "A.", "no dog", "three"):
        score = scorer.score(sample_image("cat"), caption)
        assert score.verdict is None
        assert "no judged word" in score.headline
        assert not math.isnan(score.match)
    assert scorer.score(sample_image("cat"), "a cat").verdict == "on topic"


def test_verdict_never_contradicts_the_shown_number():
    for hundredths in range(1001):
        match = hundredths / 1000
        shown = float(f"{match:.2f}")
        expected = "on topic" if shown >= 0.5 else "unsure" if shown >= 0.2 else "off topic"
        assert verdict(match) == verdict(shown) == expected
        low, high = verdict_ranges()[expected]
        assert low <= shown <= high


def test_caption_in_another_language_has_no_match_and_no_reward():
    assert guard_reward(0.4, "eine Katze", 1.0, ["not English"]) == (None, ())
    pipeline = Scorer("toy").pipeline
    images = pipeline.embedder.images(pipeline.decode([Image.new("RGB", (64, 64), "red")]))
    measured = pipeline.measure(images, pipeline.embedder.texts(["a red square"] * 2), [0, 0], [0, 1])
    measured = replace(measured, tokens=(measured.tokens[0], replace(measured.tokens[1], warnings=("not English",))))

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Known(Paper):
        def numbers(self, measured):
            return Paper.numbers(self, measured) | {"match": np.full(2, 0.9), "invented": np.full(2, 0.1)}

    english, german = numbers_of(measured, Known())
    assert (english.values["match"], english.values["invented"]) == pytest.approx((0.9, 0.1))
    assert (german.values["match"], german.values["invented"]) == (None, None)
    assert why_missing("match", german.warnings) == "not English, which this encoder reads"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("ba\u0328\u0301c", (0, 1, 3, 4, 5)),  # the first mark is composed with its letter, the second one stays
        ("\u200ba\u0301b", (1, 3, 4)),
        ("a\u200b\u200bb", (0, 3, 4)),
        ("d\u0301o", (0, 2, 3)),  # a mark that no language has on this letter
    ],
)
def test_characters_of_a_cleaned_caption_map_to_the_original(text, starts):
    assert clean(text).starts == starts


def test_an_enumeration_has_four_items_with_and_or_eight_with_commas_of_at_most_three_words():
    def is_list(text):
        return "list of words" in form_warnings(tokens(text), english=True)

    item = "a small dog"
    assert is_list(" and ".join([item] * 4))
    assert not is_list(" and ".join([item] * 3))
    assert not is_list(" and ".join(["a very small dog"] * 4))
    assert is_list(", ".join(f"a {word}" for word in ["dog", "cat", "bird", "tree", "house", "car", "boat", "man"]))
    assert is_list("a dog and a cat and a bird and a tree stand in a field")
    assert not is_list("a dog and a cat stand on the beach and a bird and a fish are in the water")


def test_text_with_a_third_of_repeated_trigrams_is_a_repetition():
    def repeats(text):
        return "repeated" in form_warnings(tokens(text), english=True)

    assert repeats("a dog runs a dog runs a dog runs")
    assert not repeats("a dog runs a dog runs")
    assert not repeats("a dog a dog")
    assert repeats("the dog sees the dog. the dog sees the dog.")
    assert not repeats("a dog runs on a beach and a dog sits on a rock by the sea")
