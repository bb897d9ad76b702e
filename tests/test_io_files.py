from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from msdscore.io.files import file_key, pixel_key, source_key, text_key


def test_pixel_key_is_stable():
    # Random starts depend on it: a change here changes scores.
    assert pixel_key(Image.new("RGB", (3, 2), (1, 2, 3))) == 2127310545064057349


def test_pixel_key_depends_on_every_pixel():
    image = Image.new("RGB", (8, 8))
    before = pixel_key(image)
    image.putpixel((7, 7), (0, 0, 1))
    assert pixel_key(image) != before


@given(st.text(st.characters()), st.text(st.characters()))
def test_text_keys_are_63_bit_and_distinct(one, other):
    assert 0 <= text_key(one) < 2**63
    assert (text_key(one) == text_key(other)) == (one == other)


def test_source_keys(tmp_path):
    assert source_key(tmp_path / "a.png") == source_key(str(tmp_path / "b" / ".." / "a.png"))
    assert source_key(tmp_path / "a.png") != source_key(tmp_path / "b.png")
    assert source_key(b"abc") == source_key(b"abc") != source_key(b"abd")


def test_file_key_reads_everything(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * 3_000_000)
    before = file_key(path)
    path.write_bytes(b"a" * 2_999_999 + b"b")
    assert file_key(path) != before


def test_pixel_key_uses_rgb_pixels():
    palette = Image.new("RGB", (4, 3), "red").quantize(2)
    grey = Image.new("L", (4, 3), 77)
    assert pixel_key(palette) == pixel_key(Image.new("RGB", (4, 3), "red"))
    assert pixel_key(grey) == pixel_key(Image.new("RGB", (4, 3), (77, 77, 77)))


def test_a_folder_above_a_symbolic_link_is_that_of_its_target(tmp_path):
    (tmp_path / "other" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other" / "inner")
    through_link = source_key(str(tmp_path / "link" / ".." / "a.png"))
    assert through_link == source_key(tmp_path / "other" / "a.png") != source_key(tmp_path / "a.png")
