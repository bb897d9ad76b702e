"""The service's page in a real Chromium: upload, type, hover, compare, export, errors, dark mode, phone, axe."""

import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser import Browser, chromium
from msdscore import Scorer
from msdscore.explain.overlay import map_of, map_scale, overlay
from serving import TOKEN, served

SCORED = "document.querySelectorAll('.match').length === document.querySelectorAll('#captions .card').length"
READY = (
    "document.querySelector('.words [role=button]') && !document.querySelector('.stale') "
    f"&& document.getElementById('status').textContent === '' && {SCORED}"
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with chromium(1360, 900) as found:
        yield found


@pytest.fixture
def browser(running: Browser, address: str) -> Browser:
    running.view(1360, 900)
    running.open(address)
    running.wait(READY)
    return running


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A red square on blue, with shading so that every grey occurs."""
    pixels = np.zeros((200, 300, 3), dtype=np.uint8)
    pixels[..., 2] = np.linspace(40, 255, 300).astype(np.uint8)
    pixels[60:140, 100:200] = (220, 20, 20)
    path = tmp_path_factory.mktemp("pictures") / "square.png"
    Image.fromarray(pixels).save(path)
    return path


def shot(browser: Browser, name: str) -> None:
    """Keep a screenshot where a folder for them is named."""
    if folder := os.environ.get("SCREENSHOTS"):
        time.sleep(0.4)  # bars move for a moment
        browser.screenshot(Path(folder) / f"{name}.png")


def opened(browser: Browser, picture: Path, *captions: str) -> None:
    """The page with a picture and captions of our own."""
    browser.choose("#file", picture)
    for number, caption in enumerate(captions):
        if number == 0:
            while browser.run("return document.querySelectorAll('[aria-label^=Remove]').length") > 0:
                browser.click("[aria-label^=Remove]")
        browser.click("#add")
        browser.type(caption)
        browser.wait(f"document.querySelectorAll('#captions .card').length === {number + 1}")
    browser.wait(READY)


def test_the_sample_is_ranked_with_its_words_in_colour_and_nothing_is_loaded_from_elsewhere(browser, address):
    scores = browser.run(
        "return [...document.querySelectorAll('.match b')].map(b => Number(b.textContent.replace('−', '-')))"
    )
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert browser.run("return document.querySelectorAll('.w').length") > 20
    colours = browser.run("return [...document.querySelectorAll('.w[style]')].map(w => w.style.background)")
    assert len(set(colours)) > 2
    assert browser.run("return document.querySelectorAll('.bar').length") >= 12
    loaded = browser.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert all(name.startswith((address, "blob:")) for name in loaded)
    assert browser.complaints == []
    shot(browser, "sample")


def test_typing_moves_the_score_and_the_order(browser, picture):
    opened(browser, picture, "a blue dog", "a red square")
    first = browser.run("return document.querySelector('.card .words').textContent")
    worse = browser.run("return document.querySelectorAll('.card')[1].dataset.card")
    before = browser.run("return document.querySelectorAll('.match b')[1].textContent")
    browser.click(
        f"[data-card='{worse}'] [aria-label^=Edit]"
        if browser.run("return !document.querySelector('textarea')")
        else f"[data-card='{worse}'] textarea"
    )
    browser.run("document.querySelector(`[data-card='${arguments[0]}'] textarea`).focus()", worse)
    browser.type(" and a red blue green yellow square")
    browser.wait(f"document.querySelector('[data-card=\"{worse}\"] .moved') && {READY}")
    after = browser.run("return document.querySelector(`[data-card='${arguments[0]}'] .match b`).textContent", worse)
    assert after != before
    assert browser.run("return document.activeElement.tagName") == "TEXTAREA"
    assert first in browser.run("return [...document.querySelectorAll('.words')].map(w => w.textContent)")
    shot(browser, "typing")


def test_a_word_shows_where_it_looks_and_a_region_its_words(browser, picture):
    browser.hover(".card .w:not(.none)")
    browser.wait("document.querySelector('#stages canvas').ariaLabel.includes('where “')")
    assert "% of it" in browser.run("return document.getElementById('legend').textContent")
    shot(browser, "word")
    browser.hover("h1")
    browser.wait("!document.querySelector('#stages canvas').ariaLabel.includes('where “')")
    opened(browser, picture, "a red square")
    browser.hover("#stages canvas")
    browser.wait("document.getElementById('legend').textContent.match(/This region/)")
    told = browser.run("return [...document.querySelectorAll('.w.on')].map(w => w.textContent)")
    assert "red" in told
    assert browser.run("return document.getElementById('legend').textContent").endswith(", ".join(told))
    shot(browser, "region")


def test_words_regions_and_maps_are_reached_by_keyboard(browser):
    browser.run("document.querySelector('.words [tabindex=\"0\"]').focus()")
    first = browser.run("return document.activeElement.textContent")
    browser.press("ArrowRight")
    assert browser.run("return document.activeElement.textContent") != first
    assert "where “" in browser.run("return document.querySelector('#stages canvas').ariaLabel")
    assert "supported" in browser.run(
        "return [...document.querySelectorAll('[role=button]')].map(w => w.ariaLabel).join()"
    )
    browser.run("document.querySelector('#stages canvas').focus()")
    browser.press("ArrowLeft")
    browser.press("ArrowUp")
    assert "region" in browser.run("return document.getElementById('spoken').textContent")
    assert browser.run("return document.activeElement.tagName") == "CANVAS"
    browser.run("document.querySelector('#maps [tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    assert browser.run("return document.activeElement.dataset.map") == "support"


def test_two_captions_stand_side_by_side_on_one_scale(browser):
    for number in (0, 1):
        browser.run("document.querySelectorAll('.card input[type=checkbox]')[arguments[0]].click()", number)
    assert browser.run("return document.querySelectorAll('#stages canvas').length") == 2
    assert browser.run("return [...document.querySelectorAll('figcaption')].map(f => f.textContent)") == browser.run(
        "return [...document.querySelectorAll('.words')].slice(0, 2).map(w => w.textContent)"
    )
    assert browser.run("return document.querySelector('#maps [aria-checked=true]').dataset.map") == "penalty"
    shot(browser, "side-by-side")


@pytest.mark.parametrize("role", ["support", "penalty", "omission"])
def test_a_map_is_drawn_as_the_figures_draw_it(browser, picture, role):
    opened(browser, picture, "a red square", "a green dog on a blue sofa")
    browser.click(f"[data-map={role}]")
    found = browser.run("return document.querySelector('#stages canvas').toDataURL('image/png')")
    drawn = np.asarray(Image.open(BytesIO(b64decode(found.partition(",")[2]))).convert("RGB"), dtype=float)
    caption = browser.run("return document.querySelector('figcaption').textContent")
    explained = Scorer("toy").contrast(picture, ["a red square", "a green dog on a blue sofa"])
    item = next(one for one in explained if one.score.caption == caption)
    expected = overlay(Image.open(picture), map_of(item, role), item.patches, role, map_scale(explained, role))
    # Ramps have 128 steps here, and greys are rounded in another place.
    assert np.abs(drawn - np.asarray(expected, dtype=float)).max() <= 4


def test_exports_are_files_and_the_script_makes_the_same_numbers(browser, picture, tmp_path):
    opened(browser, picture, "a red square", 'a "green" dog')
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    begins = {"svg": b"<?xml", "json": b"{", "python": b"# Makes the numbers"}
    for kind, start in begins.items():
        browser.click(f"[data-export={kind}]")
        path = tmp_path / f"square.{'py' if kind == 'python' else kind}"
        until = time.monotonic() + 60
        while not path.is_file():
            assert time.monotonic() < until, browser.run("return document.getElementById('status').textContent")
            time.sleep(0.05)
        assert path.read_bytes().startswith(start)
    (tmp_path / "square.png").write_bytes(picture.read_bytes())
    run = subprocess.run([sys.executable, "square.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 'a "green" dog' in run.stdout


def test_what_goes_wrong_is_said_in_the_page(browser, tmp_path, picture):
    broken = tmp_path / "broken.png"
    broken.write_bytes(picture.read_bytes()[:60])
    browser.choose("#file", broken)
    browser.wait("[...document.querySelectorAll('.note')].some(note => note.textContent.includes('picture'))")
    shot(browser, "broken-picture")
    opened(browser, picture, "a dog")
    browser.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    browser.click("#add")
    browser.type("a red square")
    browser.wait("document.getElementById('status').textContent.includes('cannot be reached')")
    assert browser.run("return document.getElementById('status').classList.contains('error')")


def test_a_token_is_asked_for_where_the_service_wants_one(running):
    with served(token=TOKEN) as address:
        running.view(1360, 900)
        running.open(address)
        running.wait("document.getElementById('status').textContent.includes('token')")
        assert running.run("return document.activeElement.id") == "token"
        running.type(TOKEN)
        running.run("document.getElementById('token').dispatchEvent(new Event('change'))")
        running.wait(READY)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_a_scored_file_is_paged_worst_first_and_a_row_opens(browser, tmp_path, picture, ending):
    captions = [f"a red square number {number}" for number in range(11)] + ["a green dog"]
    scores = Scorer("toy").score_batch([picture], captions, owner=[0] * len(captions))
    frame = scores.to_pandas().assign(image=picture.name)
    path = tmp_path / f"scored.{ending}"
    write = {"jsonl": frame.to_json, "parquet": frame.to_parquet, "csv": frame.to_csv}[ending]
    write(path, **({"orient": "records", "lines": True} if ending == "jsonl" else {"index": False}))
    browser.click("#scored summary")
    browser.choose("#rows-file", path)
    browser.wait("document.querySelectorAll('#rows li').length === 10")
    worst = captions[int(np.argmin(scores.soft_msd))]
    assert worst in browser.run("return document.querySelector('#rows li').textContent")
    browser.run(
        "document.getElementById('rows-by').value = 'support'; document.getElementById('rows-by').dispatchEvent(new Event('change'))"
    )
    browser.wait("document.querySelector('#rows li b')?.textContent.startsWith('support')")
    assert captions[int(np.argmax(scores.support))] in browser.run(
        "return document.querySelector('#rows li').textContent"
    )
    browser.click("#rows-on")
    browser.wait("document.querySelectorAll('#rows li').length === 2")
    if ending == "jsonl":
        browser.click("#rows-back")
        browser.run("document.getElementById('rows-pictures').removeAttribute('webkitdirectory')")
        browser.choose("#rows-pictures", picture)
        browser.wait("document.querySelector('#rows button')")
        shot(browser, "scored-file")
        browser.click("#rows button")
        browser.wait(f"document.querySelectorAll('.words').length === 1 && {READY}")


def test_the_description_of_the_api_works_offline_and_shows_every_route(running):
    with served(token=TOKEN) as address:
        running.view(1360, 900)
        running.open(f"{address}docs")
        running.wait("document.body.dataset.ready")
        running.wait("document.querySelectorAll('.opblock').length >= 10")
        routes = running.run("return [...document.querySelectorAll('.opblock-summary-path')].map(p => p.dataset.path)")
        assert {"/v1/rows", "/v1/figure", "/v1/reward", "/metrics", "/healthz"} <= set(routes)
        assert running.run("return Boolean(document.querySelector('.authorize'))")
        for route in ("/v1/rows", "/v1/score"):
            running.click(f'.opblock-summary-path[data-path="{route}"]')
        running.wait("document.querySelectorAll('.opblock-body .opblock-section-request-body').length === 2")
        loaded = running.run("return performance.getEntriesByType('resource').map(one => one.name)")
        assert all(name.startswith((address, "data:")) for name in loaded), loaded
        assert running.complaints == []
        shot(running, "docs")


def axe() -> str:
    """The newest axe-core at hand: installed by npm into build/, else the one that a Python package brings."""
    own = Path(__file__).parents[1] / "build" / "node_modules" / "axe-core" / "axe.min.js"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs axe-core: pip install axe-core-python, or npm install --prefix build axe-core")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "dark"), [(1360, False), (1360, True), (390, False), (390, True)])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_window(browser, width, dark):
    browser.view(width, 844 if width == 390 else 900, dark=dark)
    browser.click("#how summary")
    browser.click("#scored summary")
    shot(browser, f"{'phone' if width == 390 else 'desk'}-{'dark' if dark else 'light'}")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.run(axe().replace("\u2028", " ") + "; return 1;")
    found = browser.run(
        "return axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html).slice(0, 3)]))"
    )
    assert [one for one in found if one[0] in ("serious", "critical")] == []
