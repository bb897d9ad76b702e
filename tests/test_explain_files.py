"""Explanations as figures, pages and numbers, from the library and the command line."""

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from coloured_pairs import two_coloured
from msdscore import Scorer
from msdscore.cli.app import app
from msdscore.errors import ConfigError, RunError
from msdscore.explain.colours import _lab, ramp
from msdscore.explain.overlay import Scale, overlay, word_colour, word_scale

HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(1)> \"'& green $x^2$ 狗 🐕"


@pytest.fixture(scope="module")
def explained():
    return Scorer("toy").contrast(two_coloured("green", "red"), ["green on the left", HOSTILE])


@pytest.mark.parametrize(
    ("name", "start"),
    [("why.png", b"\x89PNG"), ("why.svg", b"<?xml"), ("why.pdf", b"%PDF"), ("why.html", b"<!doctype")],
)
def test_every_kind_of_file_is_written(explained, tmp_path, name, start):
    pytest.importorskip("matplotlib")
    explained.save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    first = (tmp_path / name).read_bytes()
    explained.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_a_figure_has_the_width_of_a_column(explained):
    pytest.importorskip("matplotlib")
    one, both = (Image.open(BytesIO(shown._repr_png_())) for shown in (explained[0], explained))
    assert one.width == pytest.approx(3.4 * 300, abs=1)
    assert both.width == pytest.approx(6.8 * 300, abs=1)
    assert one.height < one.width


def test_figures_shrink_and_grow_with_the_picture():
    pytest.importorskip("matplotlib")
    scorer = Scorer("toy")
    heights = []
    for size in ((400, 20), (64, 64), (20, 400)):
        shown = scorer.explain(two_coloured("green", "red", size), "green " * 200)
        heights.append(Image.open(BytesIO(shown._repr_png_())).height)
    assert heights == sorted(heights)


def test_json_has_both_captions(explained, tmp_path):
    explained.save(tmp_path / "why.json")
    plain = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))
    assert [item["caption"] for item in plain["explanations"]] == ["green on the left", HOSTILE]


class Tags(HTMLParser):
    """All tags and attributes that a browser would see."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


@pytest.mark.parametrize("form", ["page", "snippet"])
def test_captions_cannot_write_html(explained, tmp_path, form):
    explained.save(tmp_path / "why.html")
    text = (tmp_path / "why.html").read_text(encoding="utf-8") if form == "page" else explained._repr_html_()
    tags = Tags()
    tags.feed(text)
    assert not [attrs for _, attrs in tags.seen if "onerror" in attrs]
    scripts = [attrs for tag, attrs in tags.seen if tag == "script"]
    assert len(scripts) == (3 if form == "page" else 0)
    assert all(attrs["src"].startswith("data:") for tag, attrs in tags.seen if tag == "img" and "src" in attrs)


def test_the_page_fetches_nothing(explained, tmp_path):
    explained.save(tmp_path / "why.html")
    text = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text


def test_an_unknown_ending_is_refused(explained, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown kind of explanation; expected a name ending in \.png, \.svg"):
        explained.save(tmp_path / "why.gif")


def test_a_folder_that_is_not_there_is_one_line(explained, tmp_path):
    with pytest.raises(RunError, match=r"why.json: cannot be written \(No such file"):
        explained.save(tmp_path / "none" / "why.json")


def test_ramps_take_even_steps_that_are_seen_as_such():
    for role in ("support", "penalty", "omission", "leaning"):
        shades = _lab(ramp(role, np.linspace(0, 1, 9)).astype(float))
        steps = np.linalg.norm(np.diff(shades, axis=0), axis=1)
        assert steps.std() / steps.mean() < 0.05
        assert (np.diff(shades[:, 0]) < 0).all()


def test_hues_differ_for_colour_blind_readers():
    # Deuteranopia, Viénot, Brettel and Mollon 1999, on linear light.
    blind = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
    ends = {}
    for role in ("support", "penalty", "omission"):
        linear = (ramp(role, 1.0) / 255.0) ** 2.2
        ends[role] = _lab(np.clip(blind @ linear, 0, 1) ** (1 / 2.2) * 255)
    gaps = [
        np.linalg.norm(ends[a] - ends[b])
        for a, b in (("support", "penalty"), ("support", "omission"), ("penalty", "omission"))
    ]
    assert min(gaps) > 0.08  # about four times a just noticeable difference in OKLab


def test_unseen_parts_of_the_picture_are_dark():
    import torch

    from msdscore.encoders.base import PatchLayout

    picture = Image.new("RGB", (8, 4), "white")
    cells = PatchLayout((8, 4), (1, 1), torch.tensor([[2.0, 0.0, 6.0, 4.0]]))
    tinted = np.asarray(overlay(picture, np.array([[1.0]]), cells, "support", Scale(0.0, 1.0)))
    assert tinted[0, 0].max() < 140
    assert tinted[0, 4].tolist() == ramp("support", 1.0).tolist()


def test_words_are_coloured_by_their_gap_and_a_good_caption_does_not_glow(explained):
    scale = word_scale([explained[0]])
    colours = {unit.text: word_colour(unit, scale) for unit in explained[0].units}
    assert colours["green"] == ("support", 1.0)
    assert colours["the"] == ("penalty", 0.0)
    calibrated = replace(explained[0], config=explained[0].config.changed(calibration="background"))
    assert word_scale([calibrated]).high == max(0.0, *(unit.gap for unit in explained[0].ranked))


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments), "--encoder", "toy"])


@pytest.fixture
def picture(tmp_path):
    two_coloured("green", "red").save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_the_command_shows_words_and_writes_files(picture, tmp_path):
    pytest.importorskip("matplotlib")
    answer = run(picture, "blue and green", "--against", "red", "-o", tmp_path / "a.png", "--words", tmp_path / "w.png")
    assert answer.exit_code == 0, answer.output
    assert "nats  blue" in answer.output
    assert (tmp_path / "a.png").exists()
    assert (tmp_path / "w.png").exists()


def test_the_command_prints_json(picture):
    answer = run(picture, "blue and green", "--json")
    assert json.loads(answer.stdout)["explanations"][0]["least_supported"][0]["text"] == "blue"


def test_names_are_checked_before_the_work(picture):
    answer = run(picture, "green", "-o", "why.gif")
    assert isinstance(answer.exception, ConfigError)
    answer = run(picture, "green", "--words", "why.html")
    assert "unknown kind of figure" in str(answer.exception)


def test_without_matplotlib_numbers_and_pages_still_work(tmp_path):
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
        "assert item._repr_png_() is None and 'green' in item._repr_html_()\n"
        "try:\n"
        f"    item.save({str(tmp_path / 'why.png')!r})\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "pip install 'msdscore[figures]'" in answer.stdout
