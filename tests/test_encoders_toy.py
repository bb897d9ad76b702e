"""The toy encoder: identical bits on all machines, and plausible similarities."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError


@pytest.fixture
def encoder():
    return load_encoder("toy", device="cpu")


@pytest.fixture
def scene():
    """Return a wide image, red on the left and blue on the right."""
    image = Image.new("RGB", (120, 60), "blue")
    image.paste((220, 30, 30), (0, 0, 60, 60))
    return image


def test_cells_have_boxes_of_the_image(encoder, scene):
    (layout,) = prepare_and_encode(encoder, [scene]).layout
    assert layout.grid == (6, 6)
    assert layout.boxes[0].tolist() == [0, 0, 20, 10]
    assert layout.boxes[35].tolist() == [100, 50, 120, 60]


@pytest.mark.parametrize(("word", "columns"), [("red", {0, 1, 2}), ("Blue", {3, 4, 5})])
def test_a_colour_word_is_nearest_to_cells_of_that_colour(encoder, scene, word, columns):
    cells = prepare_and_encode(encoder, [scene]).points[0]
    likeness = cells @ encoder.encode_texts([word]).points[0, 0]
    assert {int(cell) % 6 for cell in np.argsort(-likeness)[:18]} == columns
    assert likeness.max() > 0.8


@pytest.mark.parametrize(("word", "cell"), [("left", 12), ("bottom", 32), ("right", 17), ("top", 2)])
def test_a_position_word_is_nearest_to_its_side(encoder, word, cell):
    cells = prepare_and_encode(encoder, [Image.new("RGB", (60, 60), "white")]).points[0]
    likeness = (cells @ encoder.encode_texts([word]).points[0, 0]).reshape(6, 6)
    side = {"left": likeness[:, 0], "right": likeness[:, 5], "top": likeness[0], "bottom": likeness[5]}
    assert likeness.flatten()[cell] in side[word]
    assert side[word].mean() == max(values.mean() for values in side.values())


def test_a_true_caption_beats_a_false_one(encoder, scene):
    image = prepare_and_encode(encoder, [scene]).pooled[0]
    true, false = encoder.encode_texts(["a red and a blue field", "a green and a pink field"]).pooled
    assert image @ true > image @ false + 0.1


def test_words_have_their_spans(encoder):
    text = "Two  dogs, café 犬"
    (layout,) = encoder.encode_texts([text]).layout
    assert [text[slice(*span)] for span in layout.spans] == ["Two", "dogs", "café", "犬"]


def test_word_vectors_do_not_depend_on_the_position(encoder):
    out = encoder.encode_texts(["dog", "a small DOG ran"])
    assert np.array_equal(out.points[0, 0], out.points[1, 2])


@pytest.mark.parametrize("text", ["", "  ", "!?"])
def test_a_text_without_words_has_an_empty_mask_and_a_unit_pooled_vector(encoder, text):
    out = encoder.encode_texts([text, "dog"])
    assert out.mask.tolist() == [[False], [True]]
    assert np.linalg.norm(out.pooled[0]) == 1


def test_vectors_have_a_fixed_hash(encoder, scene):
    image, text = prepare_and_encode(encoder, [scene]), encoder.encode_texts(["a red ball on the left of a dog"])
    content = b"".join(part.tobytes() for out in (image, text) for part in (out.points, out.pooled))
    assert hashlib.sha256(content).hexdigest()[:16] == "c13bb7cf0d231944"


def test_it_has_no_options_and_no_gpu():
    with pytest.raises(ConfigError, match="no options, got patch_norm"):
        load_encoder("toy", patch_norm=True)
    with pytest.raises(ConfigError, match="CPU only.* got 'cuda'"):
        load_encoder("toy", device="cuda")
