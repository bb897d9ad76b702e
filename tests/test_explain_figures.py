"""Layout of figures: every text and image is inside the page, nothing overlaps, and no space is wasted."""

import itertools

import numpy as np
import pytest
from PIL import Image

from coloured_pairs import two_coloured
from msdscore import Scorer, sample_image
from msdscore.explain.figure import NO_GLYPH, figure, figure_pixels, missing_glyphs, rendered, ruler, set_lines
from msdscore.explain.look import css, legend, spans, waterfall, word_limit
from msdscore.explain.maps import maps_of, overlay, thumbnail
from msdscore.text.warnings import UNFAMILIAR

pytest.importorskip("matplotlib")

SHORT = "green on the left"
LONG = "a red bird and a very small dog on the big grass by the lake on a sunny day"
MISSING = "green \U000f0000 dog"  # a private-use character that no font has
CLOSE = 0.11  # inches: the largest vertical space between two items
SLACK = 0.01  # glyphs of neighbours may touch


@pytest.fixture(scope="module")
def explained():
    return Scorer("toy").explain(two_coloured("green", "red"), [SHORT, LONG, "a dog"])


def explain(caption, size=(48, 32)):
    return Scorer("toy").explain(two_coloured("green", "red", size), caption)


def boxes(drawn):
    """Left, top, right and bottom of every text and image in inches from the top left corner of the page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with missing_glyphs():
        FigureCanvasAgg(drawn).draw()
        items = [(text.get_text(), text) for text in drawn.texts] + [("", axes) for axes in drawn.axes]
        extents = [(name, item.get_window_extent()) for name, item in items]
    height = drawn.bbox.height
    return [(name, np.array([box.x0, height - box.y1, box.x1, height - box.y0]) / drawn.dpi) for name, box in extents]


def assert_clean(drawn, *, close=CLOSE):
    placed = boxes(drawn)
    width, height = drawn.bbox.width / drawn.dpi, drawn.bbox.height / drawn.dpi
    assert not any(axes.axison for axes in drawn.axes)
    for name, (left, top, right, bottom) in placed:
        assert left >= 0.05 - SLACK, name
        assert top >= 0, name
        assert right <= width - 0.05 + SLACK, name
        assert bottom <= height, name
    for (first, box), (second, other) in itertools.combinations(placed, 2):
        shared = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
        assert shared.min() <= SLACK, (first, second)
    end = 0.0
    for name, (_, top, _, bottom) in sorted(placed, key=lambda item: item[1][1]):
        assert top - end <= close, f"empty space above {name!r}"
        end = max(end, bottom)
    assert height - end <= close


def texts(drawn):
    return [text.get_text() for text in drawn.texts]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_figures_have_no_overlap_or_empty_space(explained, count):
    assert_clean(figure(explained[:count]))


@pytest.mark.parametrize("size", [(64, 64), (400, 20), (20, 400)])
def test_figures_of_any_image_size_have_no_overlap_or_empty_space(size):
    item = explain(LONG, size)
    assert_clean(figure([item]))
    shown = next(axes for axes in figure([item]).axes if axes.images).get_window_extent()
    shape = min(max(size[1] / size[0], 0.4), 1.6)  # extreme formats are squeezed
    assert shown.height / shown.width == pytest.approx(shape, rel=0.01)


@pytest.mark.parametrize("caption", [MISSING, "dog " * 200, "a dog and a cat $x^2$ − naïve"])
def test_figures_of_unusual_captions_have_no_overlap_or_empty_space(caption):
    assert_clean(figure([explain(caption)]))


def test_a_figure_has_the_caption_the_maps_the_sum_and_the_remarks_in_this_order(explained):
    item = explained[0]
    drawn = figure([item])
    placed = dict(boxes(drawn))
    words = SHORT.split()
    assert texts(drawn)[:4] == words
    lefts = [placed[word][0] for word in words]
    assert lefts == sorted(lefts)
    for (text, _, _), (other, _, _) in itertools.pairwise(legend([item])):
        assert 0.05 < placed[other][0] - placed[text][2] < 0.16
    maps = list(maps_of([item])[0].values())
    steps = [f"{step.name} {step.size:+.3f}".replace("-", "−") for step in waterfall(item)]
    rows = [
        words,
        [text for text, _, _ in legend([item])],
        [drawn.title for drawn in maps],
        [maps[0].high],
        [f"Soft-MSD {item.score.soft_msd:+.3f}"],
        steps,
        [text for text in texts(drawn) if text.startswith("least supported, nats: left")],
    ]
    tops = [max(placed[text][1] for text in row) for row in rows]
    assert tops == sorted(tops)
    assert texts(drawn)[-1] == rows[-1][0]
    styles = {text.get_text(): text for text in drawn.texts}
    assert [styles[step].get_color() for step in steps] == ["#666", *(step.colour for step in waterfall(item)[1:])]
    assert styles[rows[4][0]].get_fontweight() == "bold"
    assert styles[rows[4][0]].get_fontsize() > styles[steps[0]].get_fontsize()


def test_long_remarks_are_wrapped_into_lines_below_each_other():
    drawn = figure([explain("electroencephalographically counterrevolutionary internationalization")])
    first, second = boxes(drawn)[len(drawn.texts) - 2 : len(drawn.texts)]
    assert first[0].startswith("least supported, nats: ")
    assert second[0].startswith("   ")
    assert 0 < second[1][1] - first[1][1] < 0.2
    assert second[1][3] <= drawn.get_figheight()


def test_a_figure_draws_every_map_with_its_legend_and_the_sum_as_bars(explained):
    item = explained[0]
    drawn = figure([item])
    maps = list(maps_of([item])[0].values())
    images = [axes.images[0].get_array() for axes in drawn.axes if axes.images]
    for number, own in enumerate(maps):
        image, shades = images[2 * number : 2 * number + 2]
        assert (image == np.asarray(overlay(thumbnail(item.image, 480), item.patches, own))).all()
        assert (shades[0, 0] == own.shades(2)[0]).all()
        assert (shades[0, -1] == own.shades(2)[-1]).all()
    (bars,) = [axes for axes in drawn.axes if axes.patches]
    steps = waterfall(item)
    drawn_steps = [(bar.get_x(), bar.get_width()) for bar in bars.patches]
    assert drawn_steps == [(pytest.approx(step.start), pytest.approx(step.size)) for step in steps]
    low, high = bars.get_xlim()
    assert low < 0 < item.score.soft_msd < high
    assert [line.get_xdata()[0] for line in bars.lines] == [0, item.score.soft_msd]


def test_words_have_the_colours_of_their_support(explained):
    drawn = figure(explained[:1])
    limit = word_limit(explained[:1])
    pieces = [piece for piece in spans(explained[0], limit) if piece.number >= 0]
    for piece, text in zip(pieces, drawn.texts, strict=False):
        box = text.get_bbox_patch()
        assert (box is None) == (not piece.back)
        if box is not None:
            assert np.round(np.array(box.get_facecolor()[:3]) * 255).tolist() == list(bytes.fromhex(piece.back[1:]))
            assert text.get_color() == piece.ink


def test_missing_glyphs_are_one_warning_and_text_in_an_svg():
    drawn = figure([explain(MISSING)])
    with pytest.warns(UserWarning, match=NO_GLYPH) as caught:
        rendered(drawn, "png")
    assert len(caught) == 1
    assert "\U000f0000" in rendered(drawn, "svg").decode()
    assert "<text" not in rendered(figure([explain(f"{SHORT}, кот")]), "svg").decode()


def test_captions_are_in_rows_of_two(explained):
    drawn = figure(explained)
    assert drawn.get_figwidth() == pytest.approx(6.8)
    heads = [box for name, box in boxes(drawn) if name.startswith("Soft-MSD")]
    assert heads[0][1] == heads[1][1] < heads[2][1]
    assert heads[1][0] - heads[0][0] == pytest.approx(3.4)
    assert heads[2][0] == heads[0][0]
    alone = [figure([item]).get_figheight() for item in explained]
    # The rows share a legend with longer numbers, and nothing else.
    assert drawn.get_figheight() == pytest.approx(max(alone[:2]) + alone[2])


def test_captions_of_several_images_are_one_figure(explained):
    items = [explained[0], explain("a dog", (32, 48)), explained[1]]
    drawn, pixels = figure(items), figure_pixels(items)
    assert pixels.shape == (int(drawn.get_figheight() * 110), int(drawn.get_figwidth() * 110), 3)
    alone = [figure([item]).get_figheight() for item in items]
    assert alone[0] < alone[1]
    assert drawn.get_figheight() == pytest.approx(alone[1] + alone[2], abs=0.1)
    shapes = [
        round((right - left) / (bottom - top), 2) for name, (left, top, right, bottom) in boxes(drawn) if not name
    ]
    assert (shapes.count(1.5), shapes.count(0.67)) == (6, 3)


def test_lines_fit_the_column_and_words_do_not_touch(explained):
    lines = set_lines(spans(explained[1], 1.0), 3.0, 9.0)
    assert len(lines) == 2
    assert " ".join(piece.text for line in lines for _, piece in line) == LONG
    for name, (left, _, right, _) in boxes(figure([explained[1]])):
        assert 0 <= left <= right <= 3.4, name
    row = [box for name, box in boxes(figure([explained[1]])) if name in LONG.split()]
    for box, other in itertools.pairwise(row):
        if box[1] == pytest.approx(other[1], abs=0.02):
            assert 0.02 <= other[0] - box[2] <= 0.06
    assert len(set_lines(spans(explained[1], 1.0), 100.0, 9.0)) == 1


def test_a_caption_of_more_than_twelve_lines_is_cut_with_a_note():
    drawn = [" ".join(piece.text for _, piece in line) for line in set_lines(spans(explain("dog " * 200), 1), 3.0, 9.0)]
    assert len(drawn) == 12
    assert drawn[-1] == "… (the HTML page shows the whole caption)"
    assert set(drawn[:-1]) == {drawn[0]}
    fits = drawn[0].count("dog")
    assert len(set_lines(spans(explain("dog " * 12 * fits), 1), 3.0, 9.0)[-1]) == fits


def test_wide_letters_without_a_font_get_the_space_that_another_viewer_needs():
    measure = ruler(9.0, ["DejaVu Sans"])
    with missing_glyphs() as missing:
        measure("狗")
    if missing:
        assert 9.0 / 72 <= measure("狗") <= 2 * 9.0 / 72
        assert measure("狗狗") == pytest.approx(2 * measure("狗"), rel=0.1)
    assert measure("n" * 10) == pytest.approx(10 * measure("n"), rel=0.1)


def test_titles_of_maps_have_their_colours(explained):
    drawn = figure(explained[:1])
    own = {text.get_text(): text.get_color() for text in drawn.texts}
    for shown in maps_of(explained[:1])[0].values():
        assert own[shown.title] == css(shown.role, 1.0)


def test_figures_begin_with_the_match():
    item = Scorer("mini").explain(sample_image("cat"), "a close up of a cat")
    drawn = figure([item])
    assert_clean(drawn)
    match = item.score.match
    headline = f"on topic ({100 * match:.0f} %) · no word stands out"
    heads = [headline, f"MSD {item.score.soft_msd:+.3f}"]
    assert [text for text in texts(drawn) if text in heads] == heads
    foreign = Scorer("mini").explain(Image.new("RGB", (64, 48), "green"), "ein grünes Feld mit einem Hund und Katzen")
    assert "cannot be judged" in texts(figure([foreign]))


def test_figures_name_what_withholds_a_verdict():
    item = Scorer("mini").explain(Image.new("RGB", (64, 48), "green"), "a green field")
    assert item.score.withheld == (UNFAMILIAR,)
    assert item.score.verdict is None
    drawn = figure([item])
    assert_clean(drawn)
    assert f"no verdict ({100 * item.score.match:.0f} %)" in texts(drawn)
    assert any(
        UNFAMILIAR.startswith(text.removeprefix("no verdict: ")) for text in texts(drawn) if "no verdict: " in text
    )


def test_figures_of_the_evidence_form_have_no_map_of_words_in_doubt():
    item = Scorer("mini").explain(sample_image("cat"), "a cat riding a bicycle")
    assert item.doubtful
    assert list(maps_of([item])[0]) == ["support"]
