"""Report pages in a browser: opening from disk, interaction, many rows, and untrusted captions."""

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from browser import chromium, violations
from coloured_pairs import two_coloured
from msdscore import Scorer
from msdscore.core.evidence import VERDICT_AT
from msdscore.report.build import ReportOptions, build
from msdscore.rows.files import open_rows
from msdscore.run.rows import score_file
from test_report_page import write_rows

MANY = 50_000


@pytest.fixture(scope="module")
def browser():
    with chromium() as driven:
        yield driven


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    scorer = Scorer("toy")
    with open_rows(write_rows(folder)) as source:
        score_file(scorer.pipeline, source, folder / "out.parquet")
    build(folder / "out.parquet", folder / "report.html", ReportOptions(images=folder, show=4), scorer=scorer)
    return folder / "report.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    coverage, support = rng.gamma(4, 0.5, MANY), rng.gamma(3, 0.4, MANY)
    columns = {
        "id": [f"row-{number}" for number in range(MANY)],
        "image": [f"{number // 5}.jpg" for number in range(MANY)],
        "caption": [f"caption {number} of an image with some more words in it" for number in range(MANY)],
        "system": [f"system {number % 5}" for number in range(MANY)],
        "similarity": rng.normal(0.3, 0.05, MANY),
        "coverage": coverage,
        "support": support,
        "length": rng.integers(5, 60, MANY),
        "msd": 0.3 - 0.05 * (coverage + support),
        "soft_msd": 0.3 - 0.05 * (coverage + support),
        "error": pa.nulls(MANY, pa.string()),
    }
    pq.write_table(pa.table(columns), folder / "out.parquet")
    build(folder / "out.parquet", folder / "report.html", ReportOptions(show=0))
    return folder / "report.html"


def open_page(browser, path):
    browser.open(path)
    assert browser.run("return document.body.dataset.ready") == "yes"


def cells(browser, column):
    """Return the values of one column in the rendered rows."""
    return browser.run(
        "const place = [...document.querySelectorAll('#head button')].findIndex(b => b.dataset.column === arguments[0]);"
        "return [...document.querySelectorAll('#window .row')].map(row => row.children[place].textContent)",
        column,
    )


def painted(browser, plot):
    """Return the number of different colours in a plot."""
    return browser.run(
        "const c = document.querySelector(`canvas[data-plot=${arguments[0]}]`);"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();"
        "for (let i = 0; i < d.length; i += 4) seen.add((d[i] << 24) | (d[i+1] << 16) | (d[i+2] << 8) | d[i+3]);"
        "return seen.size",
        plot,
    )


def search(browser, words):
    browser.fill("#search", words)
    time.sleep(0.4)


def test_page_opens_from_disk_without_errors(browser, small):
    open_page(browser, small)
    assert browser.complaints == []
    assert "17 rows" in browser.text("#summary")
    assert "msd|enc:toy@1" in browser.text("#signature")
    browser.click("#more summary")
    assert all(
        painted(browser, plot) > 3 for plot in ("score", "similarity", "coverage", "support", "scatter", "length")
    )


def test_captions_are_not_interpreted_as_html(browser, small):
    open_page(browser, small)
    assert browser.run("return document.title") == "out.parquet"
    search(browser, "onerror")
    assert cells(browser, "caption") == ["</script><img src=x onerror=document.title='owned'> a <b>red</b> ball"]
    browser.click("#window .row")
    assert "</script><img" in browser.text("#detail .caption")
    assert browser.run("return document.title") == "out.parquet"
    assert browser.complaints == []


def test_rows_sort_in_both_directions_with_missing_values_last(browser, small):
    open_page(browser, small)
    browser.click("#head button[data-column=msd]")
    rising = [float(value) for value in cells(browser, "msd") if value]
    assert rising == sorted(rising)
    assert cells(browser, "msd")[-1] == ""
    browser.click("#head button[data-column=msd]")
    falling = [float(value) for value in cells(browser, "msd") if value]
    assert falling == sorted(falling, reverse=True)
    assert cells(browser, "msd")[-1] == ""
    browser.click("#head button[data-column=caption]")
    assert cells(browser, "caption") == sorted(cells(browser, "caption"))


def test_filters_combine_and_can_be_cleared(browser, small):
    open_page(browser, small)
    browser.click("#failed")
    assert browser.text("#count") == "1 of 17 rows"
    assert "no such file" in cells(browser, "error")[0]
    browser.click("#clear")
    assert browser.text("#count") == "17 of 17 rows"
    browser.click("#captioners tbody tr")
    shown = browser.text("#count")
    assert shown in ("8 of 17 rows", "9 of 17 rows")
    assert len(set(cells(browser, "system"))) == 1
    browser.click("#clear")


def test_a_drag_over_a_plot_selects_rows(browser, small):
    open_page(browser, small)
    box = browser.run(
        "const b = document.querySelector('canvas[data-plot=score]').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    middle = box[1] + box[3] / 2
    browser.drag((box[0] + 2, middle), (box[0] + box[2] / 2, middle))
    count = int(browser.text("#count").split()[0])
    assert 0 < count < 16
    middle = browser.run("const [a, b] = extent('msd'); return a + 0.52 * (b - a)")
    assert all(float(value) < middle for value in cells(browser, "msd"))
    assert "MSD" in browser.text("#chips")


def test_cards_show_coloured_words_and_open_their_row(browser, small):
    open_page(browser, small)
    assert browser.count(".card img") == 16
    coloured = browser.run("return [...document.querySelectorAll('.card .w')].filter(w => w.style.background).length")
    assert coloured > 4
    browser.click(".card")
    assert browser.count("#detail img") == 2
    assert "coverage" in browser.text("#detail dl")


def test_another_score_redraws_the_comparison(browser, small):
    open_page(browser, small)
    before = browser.text("#captioners thead")
    browser.fill("#metric", "coverage")
    assert "lower is better" in browser.text("#captioners thead") != before


@pytest.mark.slow
def test_fifty_thousand_rows_are_responsive(browser, large):
    open_page(browser, large)
    assert browser.text("#count") == "50,000 of 50,000 rows"
    assert browser.count("#window .row") < 60
    spent = browser.run(
        "const times = []; const timed = (work) => { const t = performance.now(); work(); times.push(performance.now() - t); };"
        "timed(() => document.querySelector('#head button[data-column=msd]').click());"
        "timed(() => { state.search = 'caption 4'; refresh(); });"
        "timed(() => { document.querySelector('#view').scrollTop = 1e9; rows(); });"
        "return times"
    )
    # A generous limit: rendering all rows takes minutes, rendering only the visible ones 0.01 s.
    assert max(spent) < 20_000
    assert browser.complaints == []


def test_last_row_is_reachable(browser, large):
    open_page(browser, large)
    browser.run("document.querySelector('#view').scrollTop = 1e9; rows()")
    assert cells(browser, "caption")[-1].startswith("caption 49999 ")
    bottom = browser.run(
        "const v = document.querySelector('#view').getBoundingClientRect();"
        "const r = [...document.querySelectorAll('#window .row')].at(-1).getBoundingClientRect(); return r.bottom - v.bottom"
    )
    assert abs(bottom) < 32


def test_explanation_page_shows_maps_of_words(browser, tmp_path):
    Scorer("toy").explain(two_coloured("green", "red"), ["green and blue", "</script>red"]).save(tmp_path / "why.html")
    browser.open(tmp_path / "why.html")
    assert browser.complaints == []
    shown = "return document.querySelector('section .shown').src"
    first = browser.run(shown)
    assert first.startswith("data:image/jpeg")
    browser.run("document.querySelector('.w').dispatchEvent(new Event('focus'))")
    assert browser.run(shown) != first
    assert "green" in browser.text("section .key")
    assert browser.text("section:nth-of-type(2) .caption") == "</script>red"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Write reports of two captioners with matches: one is slightly or much better on most of 48 images."""
    folder = tmp_path_factory.mktemp("calibrated")

    def page(gap: float):
        rng = np.random.default_rng(1)
        first = rng.uniform(0.05, 0.8, 48)
        match = np.concatenate([first, np.clip(first + gap + rng.normal(0, 0.05, 48), 0, 1)])
        columns = {
            "image": [f"{number % 48}.jpg" for number in range(96)],
            "caption": [f"caption {number}" for number in range(96)],
            "system": ["one"] * 48 + ["two"] * 48,
            "similarity": match,
            "precision": match,
            "information": match,
            "length": [5] * 96,
            "msd": match,
            "match": match,
        }
        path = folder / f"{gap}.parquet"
        pq.write_table(pa.table(columns), path)
        build(path, path.with_suffix(".html"), ReportOptions(show=0))
        return path.with_suffix(".html"), match

    return page


def test_tiles_count_and_filter_rows_and_match_is_a_percentage(browser, calibrated):
    path, match = calibrated(0.2)
    open_page(browser, path)
    tiles = browser.run("return [...document.querySelectorAll('.tile b')].map(b => Number(b.textContent))")
    low, high = VERDICT_AT
    shown = match.round(2)
    assert tiles == [(shown >= high).sum(), ((shown >= low) & (shown < high)).sum(), (shown < low).sum()]
    browser.click(".tile.off-topic")
    assert browser.text("#count").startswith(f"{tiles[2]} of 96")
    assert browser.run("return document.querySelector('.tile.off-topic').ariaPressed") == "true"
    percentages = browser.texts(".cell.off-topic")
    assert percentages
    assert all(cell.endswith(" %") and int(cell[:-2]) <= 30 for cell in percentages)
    heads = browser.run("return [...document.querySelectorAll('#head button')].map(b => b.dataset.column)")
    assert heads[:2] == ["match", "caption"]
    widths = browser.run("return [...document.querySelectorAll('#head .cell')].map(c => c.offsetWidth)")
    assert max(widths) == widths[1]


def test_captioners_are_listed_by_their_means_with_intervals(browser, calibrated):
    path, match = calibrated(0.2)
    open_page(browser, path)
    rows = browser.run("return [...document.querySelectorAll('#captioners tbody tr')].map(r => r.innerText)")
    means = {"one": match[:48].mean(), "two": match[48:].mean()}
    assert [row.split()[:2] for row in rows] == [["two", "48"], ["one", "48"]]
    for row in rows:
        assert f"{100 * means[row.split()[0]]:.0f}" in row
    assert "msdscore rank-captioners" in browser.text("#captioners")


def explained_page(folder):
    image = two_coloured("red", "blue")
    Scorer("toy").explain(image, ["a red square", "a blue dog"]).save(folder / "why.html")
    return folder / "why.html"


def demo_page(folder):
    from msdscore.report import demo

    return demo.write(demo.show(Scorer("toy")), folder)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["report", "explain", "demo"])
def test_pages_are_accessible_and_follow_dark_mode(browser, small, tmp_path, kind, dark):
    path = {"report": lambda _: small, "explain": explained_page, "demo": demo_page}[kind](tmp_path)
    browser.view(1280, 900, dark=dark)
    browser.open(path)
    paper = browser.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(paper) < 60) == dark
    assert violations(browser) == []
    browser.view(390, 844, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.view(1280, 900)


def test_explanation_page_opens_with_the_plain_image(browser, tmp_path):
    browser.open(explained_page(tmp_path))
    assert browser.run("return document.querySelector('.shown').alt") == "image"
    assert browser.text(".tabs [aria-pressed=true]") == "image"
