"""Explanations as figures, pages and numbers, from the library and the command line."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from coloured_pairs import two_coloured
from command_line import invoke
from hostile import Tags
from msdscore import Scorer
from msdscore.errors import ConfigError, RunError, install_line
from msdscore.explain.figure import families, ruler, set_lines
from msdscore.explain.look import oklab, ramp, spans, word_colour, word_limit
from msdscore.explain.maps import Map, maps_of, overlay

HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(1)> \"'& green $x^2$ 狗 🐕"


@pytest.fixture(scope="module")
def explained():
    return Scorer("toy").explain(two_coloured("green", "red"), ["green on the left", HOSTILE])


@pytest.mark.parametrize(
    ("name", "start"),
    [("why.png", b"\x89PNG"), ("why.svg", b"<?xml"), ("why.pdf", b"%PDF"), ("why.html", b"<!doctype")],
)
@pytest.mark.filterwarnings("ignore:some characters have no font")
def test_all_formats_are_written(explained, tmp_path, name, start):
    pytest.importorskip("matplotlib")
    explained.save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    first = (tmp_path / name).read_bytes()
    explained.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("form", ["page", "snippet"])
def test_captions_are_escaped(explained, tmp_path, form):
    explained.save(tmp_path / "why.html")
    text = (tmp_path / "why.html").read_text(encoding="utf-8") if form == "page" else explained._repr_html_()
    tags = Tags()
    tags.feed(text)
    assert not [attrs for _, attrs in tags.seen if "onerror" in attrs]
    assert "http://" not in text
    assert "https://" not in text
    assert form == "snippet" or "default-src 'none'" in text
    scripts = [attrs for tag, attrs in tags.seen if tag == "script"]
    assert len(scripts) == (3 if form == "page" else 0)
    assert all(attrs["src"].startswith("data:") for tag, attrs in tags.seen if tag == "img" and "src" in attrs)


def test_unknown_suffix_is_rejected(explained, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown kind .*\.png, \.svg"):
        explained.save(tmp_path / "why.gif")


def test_unwritable_path_is_a_one_line_error(explained, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="why.json: cannot be written"):
        explained.save(tmp_path / "file" / "why.json")


def test_colour_ramps_are_perceptually_uniform():
    for role in ("support", "penalty", "omission", "leaning"):
        shades = oklab(ramp(role, np.linspace(0, 1, 9)).astype(float))
        steps = np.linalg.norm(np.diff(shades, axis=0), axis=1)
        assert steps.std() / steps.mean() < 0.05
        assert (np.diff(shades[:, 0]) < 0).all()


def test_hues_differ_for_colour_blind_readers():
    # Deuteranopia, Viénot, Brettel and Mollon 1999, on linear light.
    blind = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
    ends = {}
    for role in ("support", "penalty", "omission"):
        linear = (ramp(role, 1.0) / 255.0) ** 2.2
        ends[role] = oklab(np.clip(blind @ linear, 0, 1) ** (1 / 2.2) * 255)
    gaps = [
        np.linalg.norm(ends[a] - ends[b])
        for a, b in (("support", "penalty"), ("support", "omission"), ("penalty", "omission"))
    ]
    assert min(gaps) > 0.08  # about four just noticeable differences in OKLab


def test_cropped_parts_of_the_image_are_dark():

    from msdscore.encoders.base import PatchLayout

    image = Image.new("RGB", (8, 4), "white")
    cells = PatchLayout((8, 4), (1, 1), np.array([[2.0, 0.0, 6.0, 4.0]], dtype=np.float32))
    tinted = np.asarray(overlay(image, cells, Map("support", "", np.array([[1.0]]), 1.0, "0", "1")))
    assert tinted[0, 0].max() < 140
    assert tinted[0, 4].tolist() == ramp("support", 1.0).tolist()


def test_zero_is_white_and_colour_shows_the_sign(explained):
    item = explained[1]
    limit = word_limit(explained)
    for unit in item.units:
        role, strength = word_colour(unit, limit)
        if unit.gap is None or not unit.content:
            assert strength == 0
        else:
            assert role == ("support" if unit.gap < 0 else "penalty")
            assert strength == pytest.approx(min(abs(unit.gap) / limit, 1))
    assert max(abs(unit.gap) for shown in explained for unit in shown.ranked) == limit
    assert word_colour(replace(item.ranked[0], gap=0.0), limit)[1] == 0


def test_all_scored_maps_share_one_scale(explained):
    def largest(*roles, items=explained):
        return max(float(np.abs(getattr(item, f"{role}_map")).max()) for item in items for role in roles)

    roles = ("support", "penalty", "omission")
    for maps in maps_of(explained):
        assert [(role, drawn.limit) for role, drawn in maps.items()] == [(role, largest(*roles)) for role in roles]
    words = [replace(item, terms=replace(item.terms, beta=0.0)) for item in explained]
    unscored = maps_of(words)[0]
    assert unscored["penalty"].limit == largest("support", "penalty", items=words)
    assert unscored["omission"].limit == largest("omission", items=words)
    assert unscored["omission"].limit != unscored["penalty"].limit


def test_maps_of_omissions_show_positive_values_only(explained):
    item = explained[0]
    told = replace(item, terms=replace(item.terms, coverage=item.terms.coverage - np.mean(item.terms.coverage)))
    assert told.omission_map.min() < 0 < told.omission_map.max()
    drawn = maps_of([told])[0]["omission"]
    assert (drawn.values.min(), drawn.low) == (0, "0")
    assert drawn.strength.max() <= 1
    assert tuple(drawn.shades(9)[0]) == (255, 255, 255)
    assert tuple(drawn.shades(9)[-1]) == tuple(ramp("omission", 1.0))


def pieces(text):
    item = Scorer("toy").explain(two_coloured("green", "red"), text)
    return spans(item, word_limit([item]))


def test_long_words_are_broken():
    text = "a " + "Donaudampfschifffahrt" * 6 + " b"
    lines = set_lines(pieces(text), 2.0, 9.0)
    assert len(lines) > 3
    assert "".join(piece.text for line in lines for _, piece in line) == text.replace(" ", "")
    measure = ruler(9.0, ["DejaVu Sans"])
    assert all(left + measure(piece.text) <= 2.001 for line in lines for left, piece in line)


def test_right_to_left_text_is_right_aligned():
    text = "قطة برتقالية cat"
    (line,) = set_lines(pieces(text), 3.0, 9.0)
    assert [piece.text for _, piece in line] == text.split()
    assert line[0][0] > line[1][0] > line[2][0] > 0


def test_further_fonts_are_only_loaded_for_letters_outside_ascii():
    assert families("a dog") == ["DejaVu Sans"]
    assert families("a 狗")[0] == "DejaVu Sans"


def run(*arguments):
    return invoke("explain", *map(str, arguments), "--encoder", "toy")


@pytest.fixture
def image(tmp_path):
    two_coloured("green", "red").save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_explain_command_prints_the_words_and_the_sum_that_figures_draw(image, tmp_path):
    pytest.importorskip("matplotlib")
    captions = "blue and green", "a red square"
    explained = json.loads(run(image, *captions, "--json").stdout)["explanations"]
    assert explained[0]["least_supported"][0]["text"] == "blue"
    text = run(image, *captions, "-o", tmp_path / "a.png").stdout
    assert "least supported, nats: blue" in text
    for score in (item["score"] for item in explained):
        assert f"Soft-MSD {score['soft_msd']:+.3f} = {score['similarity']:.3f} similarity " in text
    assert (tmp_path / "a.png").exists()


def test_output_names_are_checked_first(image):
    answer = run(image, "green", "-o", "why.gif")
    assert isinstance(answer.exception, ConfigError)


def test_json_and_html_work_without_matplotlib(tmp_path):
    two_coloured("green", "red").save(tmp_path / "p.png")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'matplotlib':\n"
        "            raise ModuleNotFoundError(name, name='matplotlib')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from msdscore import Scorer\n"
        "from msdscore.errors import MissingExtraError\n"
        f"item = Scorer('toy').explain({str(tmp_path / 'p.png')!r}, 'green')\n"
        f"item.save({str(tmp_path / 'why.html')!r})\n"
        "assert 'green' in item._repr_html_()\n"
        "try:\n"
        f"    item.save({str(tmp_path / 'why.png')!r})\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert install_line("msdscore[figures]") in answer.stdout


def test_carried_maps_distribute_token_terms_over_the_image(image):
    answer = run(image, "blue and green", "--json", "--map", "carried", "--form", "short")
    (item,) = json.loads(answer.stdout)["explanations"]
    assert item["map"] == "carried"
    penalty = sum(max(token["term"], 0) for token in item["tokens"])
    assert np.sum(item["penalty_map"]) == pytest.approx(penalty)
    assert np.sum(item["support_map"]) == pytest.approx(-sum(min(token["term"], 0) for token in item["tokens"]))
    answer = run(image, "green", "--map", "carry")
    assert "unknown projection 'carry'. Did you mean 'carried'?" in str(answer.exception)


def test_figure_of_two_encoders(image, tmp_path):
    more = ["--map", "carried", "--form", "short", "-o", tmp_path / "maps.html"]
    answer = run(image, "blue and green", "--also", "mini", *more)
    assert answer.exit_code == 0, answer.output
    assert "encoder toy@" in answer.output
    assert "encoder mini@" in answer.output
    page = (tmp_path / "maps.html").read_text()
    assert "encoder mini@" in page
    assert page.count("|enc:") == 2
