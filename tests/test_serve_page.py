"""The page of the service in Chromium: editing, input methods, undo, touch, sharing, export, scored files, axe."""

import csv
import json
import re
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from graphlib import TopologicalSorter
from importlib.resources import files
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats as scipy_stats

from browser import Browser, chromium, violations
from msdscore import Scorer, sample_image
from msdscore.explain.maps import maps_of, overlay
from serving import TOKEN, served

SCORED = "document.querySelectorAll('#captions .match').length === document.querySelectorAll('#captions .card').length"
READY = (
    "document.querySelector('.w') && !document.querySelector('.stale') "
    f"&& document.getElementById('status')?.textContent.trim() === '' && {SCORED}"
)
TEXTS = "return [...document.querySelectorAll('#captions textarea')].map(t => t.value)"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def judging() -> Iterator[str]:
    """Yield the address of a service whose encoder judges words and has verdicts."""
    with served(Scorer().pipeline) as found:
        yield found


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with chromium(1360, 900) as found:
        found.call("Page.addScriptToEvaluateOnNewDocument", source=FOLDER)
        yield found


# `MODULE`, the folder of the page's scripts.
FOLDER = """Object.defineProperty(window, "MODULE", {
  get: () => document.querySelector("script[type=module]").src.replace(/[^/]*$/, ""),
})"""
FORGET = (  # rows are stored for the next visit
    "return location.href.startsWith(arguments[0]) && Promise.all([import(MODULE + 'rows.js'), import(MODULE + 'images.js')])"
    ".then(([rows, images]) => { rows.change({ rows: null }); return images.saveRows(null); })"
)


@pytest.fixture
def browser(running: Browser, address: str) -> Iterator[Browser]:
    visit(running, address)
    yield running
    running.run(FORGET, address)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an image of a red square on blue, with shading so that every grey level occurs."""
    pixels = np.zeros((200, 300, 3), dtype=np.uint8)
    pixels[..., 2] = np.linspace(40, 255, 300).astype(np.uint8)
    pixels[60:140, 100:200] = (220, 20, 20)
    path = tmp_path_factory.mktemp("images") / "square.png"
    Image.fromarray(pixels).save(path)
    return path


def visit(browser: Browser, address: str) -> None:
    """Open the page in a window of the usual size and wait until its captions are scored."""
    browser.view(1360, 900)
    browser.open(address)
    browser.wait(READY)


def focus(browser: Browser, card: int = 0) -> None:
    """Move the cursor to the end of a caption."""
    browser.run(
        "const t = document.querySelectorAll('#captions textarea')[arguments[0]]; t.focus(); "
        "t.setSelectionRange(t.value.length, t.value.length)",
        card,
    )


def leave(browser: Browser) -> None:
    browser.run("document.activeElement.blur()")


def opened(browser: Browser, image: Path, *captions: str) -> None:
    """Open the page with an image and captions."""
    name = browser.run("return location.hash")
    browser.choose("#file", image)
    browser.wait(f"location.hash !== {name!r} && document.querySelectorAll('#captions .card').length === 1")
    for number, caption in enumerate(captions):
        if number:
            browser.click("#add")
            browser.wait(f"document.querySelectorAll('#captions .card').length === {number + 1}")
            browser.wait("document.activeElement.matches('textarea') && document.activeElement.value === ''")
        else:
            focus(browser)
        browser.type(caption)
    leave(browser)
    browser.wait(READY)


def test_scripts_have_no_import_circles():
    folder = files("msdscore_serve").joinpath("assets")
    scripts = [path for path in folder.iterdir() if path.name.endswith(".js")]
    imports = {path.name: re.findall(r'from "\./(\w+\.js)"', path.read_text("utf-8")) for path in scripts}
    assert len(imports["page.js"]) > 5
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)  # raises for a circle


def test_sample_is_ranked_with_coloured_words_and_no_external_resources(browser, address):
    scores = browser.run(
        "return [...document.querySelectorAll('.match b')].map(b => Number(b.textContent.replace('−', '-')))"
    )
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert any("pizza" in text for text in browser.run(TEXTS))
    colours = browser.run(
        "return [...document.querySelectorAll('.w[style]')].map(w => getComputedStyle(w).backgroundColor)"
    )
    assert len(set(colours)) > 2
    assert browser.count(".track") == 3
    assert "toy encoder" in browser.text("#toy")
    loaded = browser.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert all(name.startswith((address, "blob:")) for name in loaded)
    assert sum(name.endswith("v1/images") for name in loaded) == 1
    assert browser.complaints == []


def test_first_score_is_loaded_before_the_pictures_of_examples_and_a_reload_loads_no_file(running):
    with served() as address:
        running.view(1360, 900)
        running.open(address)
        running.wait(
            f"{READY} && [...document.querySelectorAll('#samples img')].every(i => i.complete && i.naturalWidth)"
        )
        loaded = "return performance.getEntriesByType('resource').map(r => [r.name.split('/').at(-1), r.startTime, r.responseEnd, r.transferSize])"
        entries = {name: times for name, *times in running.run(loaded)}
        assert entries["chelsea.jpg"][0] > entries["explain?fields=all"][1]
        running.reload()
        running.wait(READY)
        fresh = {name for name, _, _, size in running.run(loaded) if size > 0}
        assert fresh <= {"images", "explain?fields=all", "version"}


def test_typing_updates_the_score_and_cards_are_sorted_on_blur(browser, image):
    opened(browser, image, "a blue dog", "a red square")
    before = browser.run(TEXTS)
    last = browser.texts(".match b")[1]
    focus(browser, 1)
    browser.run("document.activeElement.select()")
    browser.type("red red red square")
    browser.wait(f"document.querySelector('.moved') && {READY}")
    assert browser.run("return document.querySelectorAll('.match b')[1].textContent") != last
    assert browser.run(TEXTS)[0] == before[0]
    assert browser.run("return document.activeElement.value") == "red red red square"
    browser.run("document.activeElement.select()")
    browser.type("a red blue square")
    browser.wait(READY)
    leave(browser)
    scores = "[...document.querySelectorAll('.match b')].map(b => Number(b.textContent.replace('−', '-')))"
    browser.wait(f"{scores}[0] >= {scores}[1]")


def test_only_the_changed_caption_is_sent(browser):
    browser.run(
        "window.sent = []; const old = fetch; window.fetch = (path, options) => { sent.push([path, options.body]); return old(path, options); }"
    )
    focus(browser)
    browser.type(" today")
    browser.wait(READY)
    sent = browser.run("return sent")
    assert [path for path, _ in sent] == ["v1/explain?fields=all"]
    items = json.loads(sent[0][1])["items"]
    assert len(items) == 1
    assert items[0]["image"].startswith("sha256:")


def test_input_methods_undo_and_selection_are_not_disturbed(browser, image):
    opened(browser, image, "a red square")

    def holds(text: str) -> None:
        browser.wait(f"document.querySelector('#captions textarea').value === {json.dumps(text)} && {READY}")
        # Rendering of scores must not take the focus.
        browser.wait("document.activeElement === document.querySelector('#captions textarea')")

    focus(browser)
    holds("a red square")
    browser.compose("n", "ね", "ねこ", "猫", result="猫")
    holds("a red square猫")
    browser.type(" blue")
    holds("a red square猫 blue")
    browser.press("z", "undo")
    holds("a red square猫")
    browser.press("z", "redo")
    holds("a red square猫 blue")
    browser.run("document.activeElement.setSelectionRange(2, 5)")
    browser.type("green")
    holds("a green square猫 blue")
    assert browser.run("return document.activeElement.selectionStart") == 7


def test_coloured_words_are_aligned_with_the_text(browser):
    for width in (1360, 700, 390):
        browser.view(width, 900)
        boxes = browser.run(
            "return [...document.querySelectorAll('.editor')].map(e => [...e.children].slice(0, 2).map(n => "
            "[n.scrollWidth, Math.round(n.getBoundingClientRect().height), getComputedStyle(n).font]))"
        )
        for words, field in boxes:
            assert words[2] == field[2]
            assert abs(words[1] - field[1]) <= 1


def test_suggestions_are_applied_by_click_and_can_be_undone(browser, image):
    hints = {
        "missing": [{"word": "corner", "probability": 0.9}],
        "suggestions": [{"number": 1, "word": "green", "instead": [{"word": "red", "probability": 0.8}]}],
    }
    browser.run(
        "const old = fetch, hints = arguments[0]; window.fetch = async (path, options) => { const answer = await old(path, options);"
        " if (!path.startsWith('v1/explain')) return answer; const body = await answer.json();"
        " for (const item of body.items) Object.assign(item.explanations[0], hints); return new Response(JSON.stringify(body)); }",
        hints,
    )
    opened(browser, image, "a green square")
    browser.wait("document.querySelector('.rather')?.textContent.includes('green')")
    browser.click(".rather button")
    browser.wait(f"document.querySelector('textarea').value === 'a red square' && {READY}")
    browser.press("z", "undo")
    browser.wait(f"document.querySelector('textarea').value === 'a green square' && {READY}")
    browser.click("#also button")
    browser.wait(f"document.querySelector('textarea').value === 'a green square corner' && {READY}")


def dropped(browser: Browser, **data: str) -> None:
    """Drop text of these types on the page, without files."""
    browser.run(
        "const data = new DataTransfer(); for (const [type, text] of Object.entries(arguments[0])) data.setData(type, text);"
        " document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }))",
        data,
    )


def test_limits_api_and_paper_are_linked(browser):
    links = browser.run("return [...document.querySelectorAll('footer a')].map(a => a.getAttribute('href'))")
    assert "docs" in links
    assert any(link.startswith("https://arxiv.org/") for link in links)
    browser.click("#to-limits")
    browser.wait("document.getElementById('about').open")
    assert "counts" in browser.text("#about")
    assert "enc:toy" in browser.text("#signature")
    assert violations(browser) == []
    browser.run("document.querySelector('#about .primary').click()")
    browser.wait("!document.getElementById('about').open")


def test_first_tab_stop_skips_to_the_captions(browser):
    browser.press("Tab")
    assert browser.run("return document.activeElement.id") == "skip"
    browser.run("document.activeElement.click()")
    browser.wait("document.activeElement.matches('#captions textarea')")
    stops = browser.run("return document.querySelectorAll('#samples button:not([tabindex=\"-1\"])').length")
    assert stops == 2  # the own image, and all examples
    browser.run("document.querySelector('#samples [tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    assert browser.run("return document.activeElement.title.startsWith('a cat')")


def test_text_typed_right_after_enter_belongs_to_the_new_card(browser, image):
    opened(browser, image, "a red square")
    focus(browser)
    for number in range(5):
        browser.press("Enter")
        browser.type(f"b{number}")
    assert browser.run(TEXTS)[-5:] == [f"b{number}" for number in range(5)]


def judged(browser: Browser, address: str, *captions: str, width: int = 1360, height: int = 900) -> None:
    """Open the example of a cat with these captions in a service with verdicts."""
    browser.view(width, height)
    fields = "".join(f"&c={caption.replace(' ', '+')}" for caption in captions)
    browser.open(f"{address}#sample=chelsea.jpg{fields}")
    browser.wait(READY, seconds=60)


REPEATED = "a photo of a tabby cat, a photo of a tabby cat, a photo of a tabby cat"
HEADS = "return Object.fromEntries([...document.querySelectorAll('#captions .card')].map(c => [c.querySelector('textarea').value, c.querySelector('.match').innerText]))"


def test_withheld_verdict_names_its_reason(running, judging):
    judged(running, judging, REPEATED, "a cat wearing a blue hat")
    heads = running.run(HEADS)
    assert re.fullmatch(r"\d+ %\nbut: repeated", heads[REPEATED])
    assert heads["a cat wearing a blue hat"].endswith("\non topic")
    assert list(heads) == ["a cat wearing a blue hat", REPEATED]
    assert int(heads[REPEATED].split()[0]) > int(heads["a cat wearing a blue hat"].split()[0])
    assert running.count("#captions .note") == 0
    running.click("[data-tool=break]")
    running.wait("document.querySelector('.broken table')")
    assert running.complaints == []


def test_rows_without_a_verdict_are_counted(running, judging, image, tmp_path):
    judged(running, judging, "a cat")
    (tmp_path / "square.txt").write_text(f"a cat\n{REPEATED}\n", encoding="utf-8")
    running.choose("#file", image, tmp_path / "square.txt")
    running.wait("/2 rows, 2 scored, [12] without a verdict/.test(document.getElementById('here-place')?.textContent)")
    running.run(FORGET, judging)


def test_every_word_says_whether_it_is_judged(running, judging):
    judged(running, judging, "seven dogs and a woman", "a catt on a chair")
    keys = running.texts("#key span")
    assert keys == ["likely wrong", "check", "neither", "supported", "grey: not judged"]
    assert running.run("return [...document.querySelectorAll('#maps button')].map(b => b.dataset.map)") == [
        "image",
        "support",  # words in doubt have no reliable region
    ]
    said = {}
    for number, word in enumerate(["seven", "dogs", "and", "a", "woman"]):
        selector = f"#captions .card:has([aria-label='Caption %d']) .w[data-word='{number}']"
        place = list(running.run(HEADS)).index("seven dogs and a woman") + 1
        running.hover(selector % place)
        running.wait(f"document.getElementById('legend').textContent.includes('“{word}”')")
        said[word] = running.text("#meant")
    assert said["seven"] == "counts are not judged"
    assert said["and"] == "not judged: not a content word"
    assert said["dogs"].startswith("likely wrong: ")
    assert said["woman"].startswith("check: ")
    assert running.texts(".unjudged") == ["Counts are not judged."]
    running.run("[...document.querySelectorAll('.rather button')].find(b => b.textContent === 'cat').click()")
    running.wait("[...document.querySelectorAll('#captions textarea')].some(t => t.value === 'a cat on a chair')")
    running.wait(READY)
    assert violations(running) == []


def test_caption_without_a_judged_word_says_so(running, judging):
    judged(running, judging, "a photo of Barack Obama", "eine Katze auf dem Tisch")
    notes = running.texts(".unjudged")
    assert notes == ["Names are not judged.", "No word of this caption is judged."]
    assert running.run(HEADS)["eine Katze auf dem Tisch"].endswith("cannot be judged")


def test_broken_captions_are_readable_on_a_phone(running, judging):
    judged(running, judging, "a cat with a blue bowl on a table", width=390, height=844)
    running.click("[data-tool=break]")
    running.wait("document.querySelector('.broken table')")
    assert running.run("return document.getElementById('key').clientHeight") < 30  # one line
    widths = running.run("return [...document.querySelectorAll('.broken td:nth-child(2)')].map(c => c.clientWidth)")
    assert min(widths) > 220
    assert running.run("const s = document.querySelector('.broken .scroll'); return s.scrollWidth <= s.clientWidth")
    rows = "[...document.querySelectorAll('.broken tr')].find(r => r.textContent.includes('swapped'))"
    marks = running.run(f"return [...{rows}.querySelectorAll('mark')].map(m => m.textContent)")
    assert len(marks) == 2
    running.run("document.querySelector('footer').scrollIntoView()")
    running.click("#to-file")
    running.wait("document.getElementById('invite')")
    assert running.run("return scrollY") == 0
    running.view(1360, 900)


def test_references_survive_a_reload(browser):
    browser.fill("#reference-lines", "a cat\na small animal")
    browser.wait("location.hash.includes('r=a+small+animal') && document.querySelectorAll('.refs').length === 3")
    browser.reload()
    browser.wait("document.querySelectorAll('.refs').length === 3")
    assert browser.run("return document.getElementById('reference-lines').value") == "a cat\na small animal"
    ranks = browser.run("return [...document.querySelectorAll('.refs')].map(r => r.textContent.split(', ')[1])")
    assert sorted(ranks) == ["rank 1 of 3", "rank 2 of 3", "rank 3 of 3"]
    assert "judged by the image and by these references" in browser.text("#judged-with")


def test_caption_has_the_focus_after_an_upload(browser, image):
    browser.choose("#file", image)
    browser.wait("document.activeElement.matches('#captions textarea') && document.activeElement.value === ''")
    assert "pasted lines" in browser.text(".tip")
    browser.press("Enter")
    browser.wait("!document.querySelector('.tip')")


def test_dropped_and_pasted_addresses_are_not_captions(browser, image):
    opened(browser, image, "a red square")
    focus(browser)
    pasted(browser, "https://example.org/dog.jpg")
    browser.wait("document.getElementById('status').textContent.includes('save the image')")
    assert browser.run(TEXTS) == ["a red square"]
    browser.click("#add")
    browser.wait("document.querySelectorAll('#captions .card').length === 2")
    browser.run("document.getElementById('status').textContent = ''")
    dropped(browser, **{"text/uri-list": "https://example.org/dog.jpg"})
    browser.wait("document.getElementById('status').classList.contains('error')")


def test_internal_error_has_a_retry_button(browser, image):
    opened(browser, image, "a red square")
    browser.run(
        'window.real = fetch; window.fetch = async () => new Response(\'{"error": "internal error"}\', { status: 500 })'
    )
    focus(browser)
    browser.type(" today")
    browser.wait("document.querySelector('#status button')?.textContent === 'Try again'")
    browser.run("window.fetch = window.real")
    browser.click("#status button")
    browser.wait(READY)


def test_examples_stay_in_place_whatever_the_shape_of_the_image(browser, tmp_path):
    tops = []
    for size in ((400, 100), (100, 400)):
        Image.new("RGB", size, "red").save(tmp_path / f"{size[0]}.png")
        opened(browser, tmp_path / f"{size[0]}.png", "a red square")
        tops.append(browser.run("return document.getElementById('samples').getBoundingClientRect().top"))
    assert tops[0] == tops[1]


def test_tabs_are_the_maps_of_the_explanations(browser):
    tabs = "return [...document.querySelectorAll('#maps button')].map(b => b.dataset.map)"
    before = browser.run(tabs)
    shown = browser.run("return fetch(MODULE + 'look.json').then(r => r.json()).then(look => Object.keys(look.titles))")
    assert before == ["image", *shown]
    browser.run("document.querySelectorAll('#captions [data-tool=remove]').forEach(b => b.click())")
    browser.wait("document.querySelectorAll('#captions .card').length === 0")
    assert browser.run(tabs) == before


def test_figure_of_many_captions_is_limited_and_can_be_cancelled(browser, image):
    opened(browser, image, "a red")
    pasted(browser, *(f" square number {number}" for number in range(70)))
    leave(browser)
    browser.wait(f"document.querySelectorAll('#captions .match').length === 70 && {READY}", seconds=60)
    browser.run(
        "window.sent = []; const old = fetch; window.fetch = (path, options) => { if (!path.startsWith('v1/figure')) return old(path, options);"
        " sent.push(options.body.getAll('caption').length);"
        " return new Promise((_, fail) => options.signal.addEventListener('abort', () => fail(new DOMException('', 'AbortError')))); }"
    )
    assert "first 12 captions" in browser.text("#exports")
    browser.click("[data-export=png]")
    browser.wait("document.getElementById('status').textContent.includes('12 captions of 70… 1 s')")
    browser.click("#status button")
    browser.wait("document.getElementById('status').textContent.trim() === ''")
    browser.click("[data-export=json]")
    browser.wait("sent.length === 2")
    browser.click("#status button")
    assert browser.run("return sent") == [12, 64]


def downloaded(folder: Path, pattern: str) -> Path:
    """Return the first downloaded file with a name of this pattern."""
    until = time.monotonic() + 60
    while not (found := [path for path in folder.glob(pattern) if not path.name.endswith(".crdownload")]):
        assert time.monotonic() < until, pattern
        time.sleep(0.05)
    return found[0]


def test_caption_is_shared_as_a_picture(browser, image, tmp_path):
    opened(browser, image, "a red square next to a very long description of a green dog on a large blue sofa")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("[data-tool=share]")
    browser.wait("document.getElementById('share')?.open")
    assert violations(browser) == []
    browser.click("#save-card")
    card = Image.open(downloaded(tmp_path, "square.card.png")).convert("RGB")
    assert card.width == 1200
    assert card.height > 720 + 2 * 68  # the caption has several lines
    assert card.getpixel((600, 360))[0] > 180  # the red square of the photograph
    tinted = {card.getpixel((x, y)) for x in range(56, 1150, 2) for y in range(740, card.height - 150, 4)}
    assert any(abs(red - blue) > 60 for red, _, blue in tinted)
    browser.wait("!document.getElementById('share')")


def test_link_contains_a_small_copy_of_the_image_on_request(browser, address, image):
    opened(browser, image, "a red square", "a dog")
    browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def link(*, with_image: bool) -> str:
        browser.click("[data-tool=share]")
        browser.wait(
            "document.getElementById('share')?.open && document.querySelector('#share pre').textContent.includes('c=a')"
        )
        if with_image:
            browser.click("#with-image")
            browser.wait("document.querySelector('#share pre').textContent.includes('thumb=')")
        browser.click("#copy-link")
        browser.wait("!document.getElementById('share')")
        return str(browser.run("return navigator.clipboard.readText()"))

    assert "thumb=" not in link(with_image=False)
    shared = link(with_image=True)
    assert len(shared) < 20_000
    browser.open(f"{address}docs")  # another page, so that nothing of this one is left
    browser.open(shared)
    browser.wait(READY)
    assert sorted(browser.run(TEXTS)) == ["a dog", "a red square"]
    assert "small copy" in browser.text("#image-note")
    browser.open(f"{address}#thumb=%25%25&c=a+dog")
    browser.wait("document.querySelector('#captions textarea')?.value === 'a dog'")


def test_broken_captions_show_what_is_caught_and_what_is_not(browser, image):
    answers(
        browser,
        "const [found] = item.explanations; if (!found) return; const match = /train|boat/.test(text) ? 0.3 : 0.9;"
        " Object.assign(found.score, { match, verdict: match > 0.5 ? 'on topic' : 'unsure' });"
        " for (const word of found.words) word.gap = word.text === 'boat' ? 1 : -1",
    )
    opened(browser, image, "a red cup on a table")
    browser.click("[data-tool=break]")
    browser.wait("document.querySelector('.broken table')")
    rows = browser.run(
        "return [...document.querySelectorAll('.broken tr')].map(row => [...row.children].map(cell => cell.textContent.trim()))"
    )
    kinds = {row[0]: row for row in rows}
    assert {"another object", "another colour", "something added", "another count", "another relation"} <= set(kinds)
    assert kinds["another relation"][1] == "a red cup under a table"
    assert kinds["another relation"][3] == "✗ missed: on topic"
    assert kinds["another object"][3] == "✓ unsure"
    assert kinds["something added"][3] == "✓ likely wrong: boat"
    missed = [row[0] for row in rows if row[3].startswith("✗")]
    said = " ".join(browser.text(".broken p").split())
    assert f"{len(rows) - len(missed)} caught, {len(missed)} missed ({', '.join(missed)})." in said
    browser.click(".broken tr:nth-child(1) button")
    browser.wait("document.querySelectorAll('#captions .card').length === 2")
    focus(browser, 0)
    browser.type(" today")
    browser.wait("!document.querySelector('.broken table')")  # it was about another text


@pytest.mark.parametrize(
    ("caption", "changed"),
    [
        ("a close up of an orange cat", {"another colour": "a close up of a blue cat"}),
        ("a person in uniform", {"another count": "seven people in uniform"}),
        ("two dogs are surfing a wave", {"another count": "seven dogs are surfing a wave"}),
        ("a man wearing an umbrella", {"two words swapped": "an umbrella wearing a man"}),
        ("a cat next to a dog", {"another relation": "a cat far from a dog"}),
        ("a cup of tea on the table", {"another relation": "a cup of tea under the table"}),
        ("a herd on the beach", {"something added": "a herd on the beach and a boat"}),
        ("a close up of a tabby cat", {"a wrong colour": "a close up of a purple tabby cat"}),
        (
            "photos of two dogs",
            {"a wrong colour": "photos of two purple dogs", "another count": "photos of seven dogs"},
        ),
    ],
)
def test_changes_of_a_caption_make_sense(browser, caption, changed):
    """A change that makes no sense, such as of “in uniform” or of both halves of “next to”, is not made."""
    found = browser.run(
        "const [text] = arguments, words = [...text.matchAll(/[a-z]+/g)].map(m => ({ text: m[0], start: m.index, end: m.index + m[0].length }));"
        " const result = { words, look: { words: words.map(() => ({ judged: true })) } };"
        " return import(MODULE + 'break.js').then(({ changesOf }) => changesOf({ text, result }).map(c => [c.kind, c.text, c.text.slice(c.start, c.end)]))",
        caption,
    )
    texts = {kind: text for kind, text, _ in found}
    assert {kind: texts.get(kind) for kind in changed} == changed
    unusual = {"another relation", "two words swapped", "another count"} - changed.keys()
    assert not unusual & texts.keys() or caption in (
        "a man wearing an umbrella",
        "a cat next to a dog",
        "a cup of tea on the table",
    )
    assert all(text.count(part) for _, text, part in found)


def test_pending_actions_are_all_repeated_when_the_service_is_back(browser, image):
    opened(browser, image, "a red square", "a dog")
    browser.run("window.real = fetch; window.fetch = () => Promise.reject(new TypeError('gone'))")
    focus(browser, 0)
    browser.type(" today")
    browser.wait("document.getElementById('status').textContent.includes('Trying again')")
    leave(browser)
    browser.run("document.querySelector('#captions .card:not(.stale) [data-tool=break]').click()")
    browser.wait("!document.querySelector('.broken')")
    browser.run("window.fetch = window.real; dispatchEvent(new Event('online'))")
    browser.wait(f"document.querySelector('.broken table') && {READY}")


def test_answers_are_stored_and_saved_as_json_lines(browser, image, tmp_path):
    opened(browser, image, "a red square")
    browser.run("localStorage.clear()")
    browser.click("[data-tool=answers]")
    browser.wait("document.querySelector('.answers')")
    for label in ("red: true", "square: true", "red: false", "square: true"):  # changed, and taken back
        browser.click(f"[aria-label='{label}']")
    assert violations(browser) == []
    browser.reload()
    browser.wait(READY)
    browser.click("[data-tool=answers]")
    browser.wait("document.querySelector('[aria-label=\"red: false\"]')?.ariaPressed === 'true'")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click(".save-answers")
    (line,) = map(json.loads, downloaded(tmp_path, "answers.jsonl").read_text().splitlines())
    given = {"image": "square.png", "caption": "a red square", "word": "red", "start": 2, "answer": False}
    assert given.items() <= line.items()
    assert "enc:toy" in line["signature"]


def test_own_image_starts_with_its_most_probable_words(running, judging):
    running.view(1360, 900)
    running.open(judging)
    running.wait(READY, seconds=60)
    running.choose("#file", Path(str(sample_image("coffee"))))
    running.wait("document.querySelector('#captions textarea')?.value === 'cup, table'")
    running.wait(READY)
    assert "describe it" in running.text(".proposed")
    assert "coffee.jpg: scored. First: cup, table" in running.text("#spoken")
    running.type("a cup of coffee")  # instead of the words
    running.wait(f"document.querySelector('#captions textarea').value === 'a cup of coffee' && {READY}")
    assert running.run("return document.querySelector('.proposed')") is None
    assert running.text(".found") == "No word stands out."
    running.run("document.querySelectorAll('#samples button')[2].click()")
    running.wait("document.getElementById('spoken').textContent.startsWith('a cat')")


def test_page_works_in_front_of_several_processes(running, tmp_path, image):
    """They take turns, and none knows the images of the others."""
    with served(copies=2) as address:
        visit(running, address)
        opened(running, image, "a red square")
        for word in ("on", "a", "blue", "wall"):
            focus(running)
            running.type(f" {word}")
            running.wait(f"document.querySelector('textarea').value.endsWith({word!r}) && {READY}")
        assert running.count(".note") == 0


def test_text_about_a_word_is_not_cut_on_a_phone(running, judging):
    judged(running, judging, "a photo of a cat with sunglasses playing saxophones in Kathmandu", width=390, height=844)
    words = running.count("#captions .w")
    for number in range(words):
        running.run(
            "document.querySelectorAll('#captions .w')[arguments[0]].scrollIntoView({ block: 'center' })", number
        )
        running.tap(f"#captions .w[data-word='{number}']")
        running.wait("document.querySelector('#legend button')")
        sizes = running.run("const l = document.getElementById('legend'); return [l.scrollHeight, l.clientHeight]")
        assert sizes[0] <= sizes[1], running.text("#legend")
        running.run("document.activeElement.blur()")
    running.view(1360, 900)


def test_story_is_told_about_examples_only(browser, image):
    browser.wait("document.getElementById('story')")
    browser.click("#break-best")
    browser.wait("document.querySelector('.broken table')")
    opened(browser, image, "a red square")
    assert browser.run("return document.getElementById('story')") is None


def test_references_add_ref_msd(browser):
    names = "[...document.querySelectorAll('table.numbers th')].map(cell => cell.textContent)"
    browser.click("[data-tool=numbers]")
    browser.wait("document.querySelector('table.numbers')")
    assert "Ref-MSD" not in browser.run(f"return {names}")
    browser.run("document.getElementById('references').open = true")
    browser.fill("#reference-lines", "a cat\n\na small animal")
    browser.wait(f"{names}.includes('Ref-MSD')")
    shown, foot = browser.run(
        "return ['.match .refs', 'tfoot tr:last-child td:last-child'].map(s => document.querySelector(s).textContent)"
    )
    assert float(shown.removeprefix("Ref-MSD ").partition(",")[0].replace("−", "-")) == pytest.approx(
        float(foot.replace("−", "-")), abs=0.006
    )
    assert "reference_count" in browser.run(f"return {names}")


def test_an_emptied_caption_has_no_score(browser):
    focus(browser, 1)
    browser.run("document.activeElement.select()")
    browser.press("z", "delete")
    browser.wait("document.querySelectorAll('.match').length === 2")
    assert browser.count("#captions .card") == 3


def test_stale_response_does_not_overwrite_a_newer_one(browser, image):
    opened(browser, image, "a red square")
    browser.run(
        "const old = fetch; let first = true; window.fetch = async (path, options) => {"
        " const slow = first && path.startsWith('v1/explain'); first = false;"
        " const answer = await old(path, { ...options, signal: undefined });"
        " if (slow) await new Promise(done => { window.release = done; }); window.done = (window.done ?? 0) + 1; return answer; }"
    )
    focus(browser)
    browser.type(" blue")
    browser.wait("window.release")  # the first response is delayed
    browser.type(" dog")
    browser.wait(f"window.done === 1 && {READY}")
    score = browser.text(".match b")
    browser.run("window.release()")
    browser.wait("window.done === 2")
    assert browser.text(".match b") == score
    assert browser.run(TEXTS) == ["a red square blue dog"]


def test_pasted_lines_become_captions(browser, image):
    opened(browser, image, "a red")
    pasted(browser, " square", "a blue dog", "", "a green cat", "")
    browser.wait(f"document.querySelectorAll('#captions .card').length === 3 && {READY}")
    assert sorted(browser.run(TEXTS)) == ["a blue dog", "a green cat", "a redsquare"]


def test_dropped_or_pasted_image_starts_with_an_empty_caption(browser):
    script = (
        "const canvas = document.createElement('canvas'); canvas.width = canvas.height = 40; canvas.getContext('2d').fillRect(0, 0, 9, 9);"
        "return new Promise(done => canvas.toBlob(blob => { const data = new DataTransfer(); data.items.add(new File([blob], 'own.png', { type: 'image/png' }));"
        " document.dispatchEvent(%s); done(1); }))"
    )
    for event in (
        "new DragEvent('drop', { dataTransfer: data })",
        "new ClipboardEvent('paste', { clipboardData: data })",
    ):
        browser.open(browser.run("return location.href.split('#')[0]"))
        browser.wait(READY)
        browser.run(script % event)
        browser.wait("document.querySelectorAll('#captions .card').length === 1")
        assert browser.run(TEXTS) == [""]
        assert "Describe" in browser.run("return document.querySelector('textarea').placeholder")


def test_word_shows_its_regions_and_region_its_words(browser, image):
    browser.hover(".card .w[style]")
    browser.wait("document.querySelector('#stages .base').ariaLabel.includes('regions matching “')")
    assert browser.text("#meant")
    assert browser.run("return document.querySelector('.veil').classList.contains('on')")
    browser.hover("h1")
    browser.wait("!document.querySelector('#stages .base').ariaLabel.includes('regions matching “')")
    opened(browser, image, "a red square")
    browser.hover("#stages .base")
    browser.wait("document.getElementById('legend').textContent.match(/This region/)")
    told = browser.texts(".w.on")
    assert "red" in told
    assert browser.text("#legend").endswith(", ".join(told))


@pytest.mark.parametrize(("width", "height"), [(1360, 900), (1000, 500), (390, 700)])
def test_region_under_the_mouse_of_a_portrait_image(browser, tmp_path, width, height):
    pixels = np.full((600, 200, 3), 255, dtype=np.uint8)
    pixels[:100, :34] = (220, 20, 20)  # the first of six columns, the first of six rows
    Image.fromarray(pixels).save(tmp_path / "tall.png")
    browser.view(width, height)
    opened(browser, tmp_path / "tall.png", "a red square")
    browser.hover("#stages .base", across=0.1, down=0.05)
    browser.wait("document.getElementById('legend').textContent.includes('red')")
    box = browser.run(
        "const b = document.querySelector('#stages .base').getBoundingClientRect(); return [b.width, b.height]"
    )
    assert box[1] / box[0] == pytest.approx(3, abs=0.1)


def test_tap_pins_a_word_and_the_image_stays_visible(browser):
    browser.view(390, 844)
    browser.run("document.querySelectorAll('.card')[2].scrollIntoView({ block: 'end' })")
    browser.wait("document.querySelectorAll('.card')[2].getBoundingClientRect().bottom <= innerHeight + 2")
    box = browser.run(
        "const b = document.querySelector('#stages .base').getBoundingClientRect(); return [b.top, b.bottom]"
    )
    assert box[0] >= -1
    assert box[1] <= 844
    place = "return document.querySelectorAll('.card')[2].getBoundingClientRect().top"
    before = browser.run(place)
    browser.tap(".card:nth-child(3) .w[style]")
    browser.wait("document.querySelector('#stages .base').ariaLabel.includes('regions matching “')")
    assert browser.run("return document.activeElement.tagName") == "BODY"  # no keyboard opens
    assert browser.run(place) == pytest.approx(before, abs=2)
    assert "regions matching “" in browser.run("return document.querySelector('#stages .base').ariaLabel")
    browser.click("#legend button")
    browser.wait("!document.querySelector('#stages .base').ariaLabel.includes('regions matching “')")


def test_words_regions_and_maps_are_accessible_by_keyboard(browser):
    browser.run("const t = document.querySelector('#captions textarea'); t.focus(); t.setSelectionRange(2, 2)")
    browser.press("ArrowRight")
    browser.wait("document.querySelector('#stages .base').ariaLabel.includes('regions matching “cup”')")
    assert "Likely wrong" in browser.run(
        "return [...document.querySelectorAll('[id^=said-]')].map(w => w.textContent).join()"
    )
    browser.press("Escape")
    browser.run("document.querySelector('#stages .base').focus()")
    browser.press("ArrowLeft")
    browser.press("ArrowUp")
    browser.wait("document.getElementById('spoken').textContent.includes('region')")
    assert browser.run("return document.activeElement.tagName") == "CANVAS"
    browser.run("document.querySelector('#maps [tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    browser.wait("document.activeElement.dataset.map === 'support'")


def test_comparison_of_two_captions(browser):
    for number in (0, 1):
        browser.run("document.querySelectorAll('[data-tool=compare]')[arguments[0]].click()", number)
    browser.wait("document.querySelector('#difference')")
    own = browser.texts("#difference .w:not(.common)")
    assert {"pizza", "laptop", "spoon"} <= set(own)
    assert "similarity" in browser.text("#difference table")
    assert browser.count("#stages .base") == 1
    browser.click("[data-map=penalty]")
    browser.wait("document.querySelectorAll('#stages .base').length === 2")
    captions = browser.texts("figcaption")
    assert captions == browser.run(TEXTS)[:2]


def test_url_restores_sample_and_captions(browser, address):
    focus(browser)
    browser.type(" today")
    browser.wait(READY)
    leave(browser)
    texts = browser.run(TEXTS)
    assert any("today" in text for text in texts)
    browser.reload()
    browser.wait(READY)
    assert sorted(browser.run(TEXTS)) == sorted(texts)
    browser.run("document.querySelectorAll('#samples button')[2].click()")
    browser.wait(f"location.hash.includes('chelsea') && {READY}")
    browser.run("history.back()")
    browser.wait(f"[...document.querySelectorAll('textarea')].some(t => t.value.includes('today')) && {READY}")
    assert sorted(browser.run(TEXTS)) == sorted(texts)
    browser.open(f"{address}#sample=temple.jpg&c=a+red+%26+blue+flag")
    browser.wait(READY)
    assert browser.run(TEXTS) == ["a red & blue flag"]


def test_uploaded_image_survives_a_reload(browser, image):
    opened(browser, image, "a red square")
    score = browser.text(".match b")
    browser.reload()
    browser.wait(READY)
    assert browser.run(TEXTS) == ["a red square"]
    assert browser.text(".match b") == score


def test_url_with_a_missing_image_restores_captions(browser, address, image):
    browser.open(f"{address}#image=image-1&c=a+red+square")
    browser.wait("document.getElementById('empty')?.textContent.includes('not stored in this browser')")
    assert browser.run(TEXTS) == ["a red square"]
    browser.choose("#file", image)
    browser.wait(READY)
    assert browser.run(TEXTS) == ["a red square"]


def test_click_is_not_lost_when_cards_are_sorted(browser, image):
    opened(browser, image, "a blue dog", "a red square")
    focus(browser, 1)
    browser.run("document.activeElement.select()")
    browser.type("dog dog dog")
    browser.wait(READY)
    browser.run("document.activeElement.select()")
    browser.type("red blue square")
    browser.wait(READY)
    browser.mouse_click(".card:nth-child(1) [data-tool=numbers]")
    browser.wait("document.querySelectorAll('.numbers').length === 1")


def answers(browser: Browser, change: str, *arguments: object) -> None:
    """Modify every explanation response with a JavaScript function body of `item`, `text` and `given`."""
    browser.run(
        "const [body, ...given] = arguments; const edit = new Function('item', 'text', 'given', body); const old = fetch;"
        " window.fetch = async (path, options) => { const answer = await old(path, options);"
        " if (!path.startsWith('v1/explain') || !answer.ok) return answer; const texts = JSON.parse(options.body).items;"
        " const found = await answer.json(); found.items.forEach((item, n) => edit(item, texts[n].captions[0], given));"
        " return new Response(JSON.stringify(found)); }",
        change,
        *arguments,
    )


def test_cards_are_sorted_by_the_displayed_value(browser, image):
    """Here the caption with the lower MSD has the higher match."""
    answers(
        browser,
        "const match = text.includes('dog') ? 0.82 : 0.29; const { score } = item.explanations[0];"
        " Object.assign(score, { match, verdict: match > 0.5 ? 'on topic' : 'off topic', msd: 1 - match })",
    )
    opened(browser, image, "a red square", "a dog")
    browser.wait("document.querySelectorAll('#captions .match b')[0].textContent === '82 %'")
    assert browser.run(TEXTS) == ["a dog", "a red square"]
    shown = browser.run(
        "return [...document.querySelectorAll('#captions .card')].map(card => [card.querySelector('.match b').textContent,"
        " card.querySelector('.match').className, card.querySelector('.match small').textContent, card.querySelector('.track i').style.width])"
    )
    assert shown == [["82 %", "match on-topic", "on topic", "82%"], ["29 %", "match off-topic", "off topic", "29%"]]
    colours = browser.run(
        "return [...document.querySelectorAll('#captions .match')].map(m => getComputedStyle(m).color)"
    )
    assert colours[0] != colours[1]
    focus(browser, 1)
    browser.type(" and a dog")
    browser.wait("document.querySelector('.moved')?.textContent === '▲ +53 points'")  # in the displayed unit


def test_numbers_add_up_and_labels_are_unique(browser, image):
    opened(browser, image, "a red square")
    browser.click("[data-tool=numbers]")
    browser.wait("document.querySelector('table.numbers')")
    rows = browser.run(
        "return [...document.querySelectorAll('table.numbers tr')].map(row => [...row.children].map(cell => cell.textContent))"
    )
    assert rows[0] == ["number", "value", "adds to MSD"]
    terms = [float(row[2].replace("−", "-")) for row in rows[1:-1] if row[2]]
    assert rows[-1][0] == "MSD"
    assert sum(terms) == pytest.approx(float(rows[-1][2].replace("−", "-")), abs=0.002)
    score = Scorer("toy").score(image, "a red square")
    assert float(rows[-1][2].replace("−", "-")) == pytest.approx(score.msd, abs=0.0006)
    value = next(row[1] for row in rows if row[0] == "coverage")
    assert float(value.replace("−", "-")) == pytest.approx(score.coverage, abs=0.0006)


def test_unreadable_caption_is_grey_without_score_and_last(browser, image):
    answers(
        browser,
        "if (!text.includes('猫')) return; const [found] = item.explanations; found.warnings = ['not English']; found.readable = false;"
        " found.look.words = found.look.words.map(() => ({ judged: false }))",
    )
    opened(browser, image, "猫がいる", "a red square")
    browser.wait("document.querySelectorAll('#captions .match').length === 2")
    assert browser.run(TEXTS) == ["a red square", "猫がいる"]
    last = "document.querySelector('.card:nth-child(2)')"
    assert "cannot read" in browser.run(f"return {last}.querySelector('.note').textContent")
    assert browser.run(f"return {last}.querySelector('.match').textContent.trim()") == "–cannot be judged"
    assert browser.run(f"return {last}.querySelectorAll('.tinted').length") == 0
    assert browser.run(f"return {last}.querySelectorAll('.w.none').length") > 0


def test_weak_words_are_darker_in_dark_mode(browser):
    script = (
        "return [...document.querySelectorAll('.w.tinted')].map(w => getComputedStyle(w).backgroundColor"
        ".match(/\\d+/g).map(Number).reduce((a, b) => a + b))"
    )
    light = browser.run(script)
    browser.view(1360, 900, dark=True)
    dark = browser.run(script)
    assert max(dark) < 450  # the lightest words in light mode exceed 600
    assert max(light) > max(dark)


@pytest.mark.parametrize("role", ["support", "penalty", "omission"])
def test_maps_equal_the_figures(browser, image, role):
    opened(browser, image, "a red square", "a green dog on a blue sofa")
    browser.click(f"[data-map={role}]")
    browser.wait("document.querySelector('figcaption')")
    browser.run("return new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")  # wait for rendering
    found = browser.run("return document.querySelector('#stages .base').toDataURL('image/png')")
    drawn = np.asarray(Image.open(BytesIO(b64decode(found.partition(",")[2]))).convert("RGB"), dtype=float)
    caption = browser.text("figcaption")
    explained = Scorer("toy").explain(image, ["a red square", "a green dog on a blue sofa"])
    item, maps = next(
        both for both in zip(explained, maps_of(explained), strict=True) if both[0].score.caption == caption
    )
    expected = overlay(Image.open(image), item.patches, maps[role])
    # Ramps have 128 steps, and greys are rounded differently.
    assert np.abs(drawn - np.asarray(expected, dtype=float)).max() <= 4


def test_exports_are_complete_and_accessible(browser, image, tmp_path):
    opened(browser, image, "a red square", 'a "green" dog')
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.wait("document.getElementById('signature').textContent")
    begins = {
        "svg": b"<?xml",
        "json": b"{",
        "html": b"<!doctype html>",
        "python": b"# Recomputes the numbers",
        "page": b"<!doctype html>",
    }
    for kind, start in begins.items():
        browser.click(f"[data-export={kind}]")
        path = tmp_path / f"square.{ {'python': 'py', 'page': 'page.html'}.get(kind, kind) }"
        downloaded(tmp_path, path.name)
        assert path.read_bytes().startswith(start)
    saved = (tmp_path / "square.page.html").read_text()
    assert "data:image/png;base64," in saved
    assert "http" not in saved.replace("http-equiv", "")
    assert "&quot;" in saved
    for name in ("square.html", "square.page.html"):
        browser.open(tmp_path / name)
        assert violations(browser) == [], name


def test_explanation_wider_than_a_phone_is_scrolled_by_keyboard(running, image, tmp_path):
    Scorer().explain(image, ["a red square", "a blue square"]).save(tmp_path / "why.html")
    running.view(390, 844)
    running.open(tmp_path / "why.html")
    assert violations(running) == []


def test_errors_are_shown_once_at_their_origin(browser, tmp_path, image):
    broken = tmp_path / "broken.png"
    broken.write_bytes(image.read_bytes()[:60])
    browser.choose("#file", broken)
    browser.wait("document.getElementById('empty')?.textContent.match(/decoded|truncated/)")  # before it is described
    assert "broken.png" in browser.text("#empty")
    assert browser.text("#empty button") == "Choose another image"
    assert browser.count(".note, #status.error") == 0


def dropped_file(browser: Browser, name: str, text: str) -> None:
    browser.run(
        "const data = new DataTransfer(); data.items.add(new File([arguments[1]], arguments[0]));"
        " document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }))",
        name,
        text,
    )


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_scored_file_is_paged_worst_first_and_rows_open(browser, tmp_path, image, ending):
    captions = [f"a red square number {number}" for number in range(21)] + ["a green dog"]
    scores = Scorer("toy").score_batch([image], captions, owner=[0] * len(captions))
    frame = scores.to_pandas().assign(image=image.name)
    path = tmp_path / f"scored.{ending}"
    write = {"jsonl": frame.to_json, "parquet": partial(frame.to_parquet, compression="zstd"), "csv": frame.to_csv}
    write[ending](path, **({"orient": "records", "lines": True} if ending == "jsonl" else {"index": False}))
    browser.click("#to-file")
    browser.wait("document.getElementById('many-images')")
    browser.choose("#many-images", path)
    browser.wait("document.querySelectorAll('#rows li').length === 20", seconds=60)
    worst = captions[int(np.argmin(scores.soft_msd))]
    assert worst in browser.text("#rows li")
    browser.fill("#rows-by", "support")
    browser.wait("document.querySelector('#rows li .match small')?.textContent === 'support'")
    assert captions[int(np.argmax(scores.support))] in browser.text("#rows li")
    browser.click("#rows-on")
    browser.wait("document.querySelectorAll('#rows li').length === 2")
    counts = browser.run("return [...document.querySelectorAll('#histogram button')].map(b => b.ariaLabel)")
    assert sum(int(label.rpartition(": ")[2].split()[0]) for label in counts) == 22
    if ending != "jsonl":
        return
    browser.fill("#rows-contains", "DOG")
    browser.wait("document.querySelectorAll('#rows li').length === 1")
    assert browser.text("#rows-place") == "1 to 1 of 1"
    browser.run("document.getElementById('rows-images').removeAttribute('webkitdirectory')")
    browser.choose("#rows-images", image)
    browser.wait("document.querySelectorAll('#rows li').length === 20")
    browser.fill("#rows-contains", "DOG")
    browser.wait("document.querySelector('#rows .open') && document.querySelector('#rows .said .w.tinted[title]')")
    browser.click("#rows .open")
    browser.wait(f"document.querySelectorAll('#captions .card').length === 1 && {READY}")
    assert browser.run(TEXTS) == ["a green dog"]
    browser.run("history.back()")
    browser.wait("!document.getElementById('scored').hidden && document.querySelectorAll('#rows li').length === 1")


def test_dropped_scored_file_shows_its_errors(browser):
    dropped_file(browser, "scored.jsonl", '{"words": "a dog"}')
    browser.wait(
        "document.getElementById('rows-note').textContent.includes('scored.jsonl: expected a column “caption”')"
    )
    assert browser.run("return document.getElementById('status').textContent.trim()") == ""
    dropped_file(browser, "scored.jsonl", '{"caption": "a dog", "match": 0.25}\n{"caption": \n')
    browser.wait("document.querySelectorAll('#rows li').length === 2")
    assert "line 2" in browser.run("return document.querySelectorAll('#rows li')[1].textContent")
    assert browser.count("#histogram button") == 0  # of a single value
    assert browser.text("#rows-note") == ""
    assert browser.run("return document.getElementById('one').hidden")
    browser.click("#to-image")
    browser.wait(f"!document.getElementById('one').hidden && {READY}")
    dropped_file(browser, "notes.docx", "x")
    browser.wait("document.getElementById('page').textContent.includes('notes.docx')")


def test_view_of_many_images_is_not_replaced_by_an_image_that_loads_late(browser, address):
    browser.run(
        "const old = fetch; window.fetch = async (path, options) => { if (String(path).includes('chelsea'))"
        " await new Promise(done => { window.late = done; }); return old(path, options); }"
    )
    browser.run("document.querySelectorAll('#samples button')[2].click()")
    browser.wait("window.late")
    browser.click("#to-file")
    browser.run("window.late()")
    browser.run("return new Promise(done => setTimeout(done, 300))")
    assert not browser.run("return document.getElementById('scored').hidden")


READ = (
    "return import(MODULE + 'table.js').then(({ readTable }) => readTable(new File([arguments[1]], arguments[0]),"
    " new Set(['image', 'caption', 'match'])).then(t => t.records, e => e.message))"
)


@pytest.mark.parametrize(
    ("name", "text", "records"),
    [
        ("a.csv", "id,caption,image\r\n1,a dog,1.jpg\r\n", [{"id": "1", "caption": "a dog", "image": "1.jpg"}]),
        ("a.csv", '\ufeffimage,caption\n1.jpg,"a ""dog"", big\nand wet"', [{"image": "1.jpg", "caption": 'a "dog", big\nand wet'}]),
        ("a.csv", "1.jpg,a dog\n2.jpg,a cat\n", [{"image": "1.jpg", "caption": "a dog"}, {"image": "2.jpg", "caption": "a cat"}]),
        ("a.tsv", "Image\tCaption\n1.jpg\ta, b\n\n", [{"Image": "1.jpg", "Caption": "a, b"}]),
        ("1.txt", "a dog\n\na cat\n", [{"image": "1", "caption": "a dog"}, {"image": "1", "caption": "a cat"}]),
        ("a.json", '[{"caption": "a", "match": 1}]', [{"caption": "a", "match": 1}]),
        ("coco.json", '{"images": [{"id": 7, "file_name": "7.jpg"}], "annotations": [{"id": 1, "image_id": 7, "caption": "a"}]}', [{"image": "7.jpg", "caption": "a"}]),
        ("a.csv", "foo,bar,baz\n1,2,3\n", "expected a first row with “image” and “caption”, got foo, bar, baz"),
        ("a.csv", "caption,caption\na,b\n", "the column “caption” is repeated"),
        ("a.csv", 'image,caption\n1.jpg,"a dog', "a quoted cell has no end"),
    ],
)  # fmt: skip
def test_files_of_rows_are_read(browser, name, text, records):
    assert browser.run(READ, name, text) == records


def test_histogram_of_nearly_equal_values_and_of_one_value(browser):
    bins = browser.run(
        "return import(MODULE + 'many.js').then(({ histogram }) => arguments[0].map(values => histogram(values, 'msd')))",
        [[0.1 + 0.2, 0.3], [1, 1, 1], [0, 5, 10]],
    )
    assert [sum(found["counts"]) for found in bins] == [2, 3, 3]
    assert bins[2]["edges"][0] == 0
    assert bins[2]["edges"][-1] == pytest.approx(10)


def test_columns_of_a_csv_are_read_by_name_and_ignored_ones_are_named(browser, image, tmp_path):
    (tmp_path / "1.png").write_bytes(image.read_bytes())
    (tmp_path / "captions.csv").write_text("id,caption,image\n7,a red square,1.png\n8,a dog,2.png\n")
    browser.click("#to-file")
    browser.wait("document.getElementById('many-images')")
    browser.choose("#many-images", tmp_path / "1.png", tmp_path / "captions.csv")
    browser.wait("document.querySelector('#rows .said .w')")
    note = browser.text("#rows-note")
    assert "captions.csv: ignored “id”" in note
    assert "1 of 2 captions have no image" in note


COCO = {"images": [{"id": 7, "file_name": "one.png"}], "annotations": [{"id": n, "image_id": 7, "caption": c} for n, c in enumerate(("a red square", "a dog"))]}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [("one.txt", "a red square\na dog\n"), ("captions.json", json.dumps(COCO))])
def test_one_image_with_its_captions_opens_as_rows(browser, image, tmp_path, name, text):
    (tmp_path / "one.png").write_bytes(image.read_bytes())
    (tmp_path / name).write_text(text)
    browser.choose("#file", tmp_path / "one.png", tmp_path / name)
    browser.wait("document.querySelectorAll('#rows .said .w').length > 2")
    assert sorted(browser.texts("#rows .said")) == ["a dog", "a red square"]
    assert browser.text("#rows-note") == ""


def rows_of_systems(browser: Browser, image: Path, tmp_path: Path) -> None:
    """Open six images with captions of two captioners."""
    lines = ["image,caption,system"]
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(image.read_bytes())
        lines += [f"{number}.png,a red square,first", f"{number}.png,a green dog on a sofa {number},second"]
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    browser.click("#to-file")
    browser.wait("document.getElementById('many-images')")
    browser.choose("#many-images", *sorted(tmp_path.glob("*.png")), tmp_path / "captions.csv")
    browser.wait("document.getElementById('here-place')?.textContent.includes('12 rows, 12 scored')")


def test_rows_survive_a_reload_and_closing_can_be_undone(browser, image, tmp_path):
    rows_of_systems(browser, image, tmp_path)
    browser.run("return new Promise(done => setTimeout(done, 500))")
    browser.reload()
    browser.wait("document.getElementById('here-place')?.textContent.includes('12 rows, 12 scored')")
    assert not browser.run("return document.getElementById('scored').hidden")
    browser.click("#close-rows")
    browser.wait("document.getElementById('invite')")
    browser.click("#status button")
    browser.wait("document.querySelectorAll('#rows li').length === 12")
    browser.click("#close-rows")
    browser.wait("document.getElementById('invite')")


def test_rows_scored_here_are_sorted_searched_and_edited(browser, image, tmp_path):
    rows_of_systems(browser, image, tmp_path)
    numbers = "[...document.querySelectorAll('#rows .match b')].map(b => Number(b.textContent.replace('−', '-')))"
    found = browser.run(f"return {numbers}")
    assert found == sorted(found)
    browser.click("#rows-turn")
    browser.wait(f"{numbers}[0] === {max(found)}")
    browser.fill("#rows-contains", "sofa 3")
    browser.wait("document.querySelectorAll('#rows li').length === 1")
    before = browser.text("#rows .match b")
    browser.click("#rows .edit")
    browser.wait("document.activeElement.matches('.describe')")
    browser.run("document.activeElement.select()")
    browser.type("a red square on a sofa 3")
    browser.press("Enter")
    browser.wait("document.querySelector('#rows .said .w')?.closest('p').textContent === 'a red square on a sofa 3'")
    assert browser.text("#rows .match b") != before
    assert "edited" in browser.text("#rows li small")
    browser.click("#close-rows")


def test_review_goes_worst_first_by_keys_and_saves_corrected_captions(browser, image, tmp_path):
    rows_of_systems(browser, image, tmp_path)
    browser.click("#to-review")
    browser.wait("document.querySelector('#review .said')")
    said = "document.querySelector('#review .said')?.textContent"
    first = browser.run(f"return {said}")
    assert "dog" in first
    browser.press("a")
    browser.wait(f"{said} !== {first!r}")
    second = browser.run(f"return {said}")
    browser.press("e")
    browser.wait("document.activeElement.matches('#review textarea')")
    browser.run("document.activeElement.select()")
    browser.type("a red square, corrected")
    browser.press("Enter")
    browser.wait("document.querySelector('#review .said .w')?.closest('p').textContent === 'a red square, corrected'")
    assert violations(browser) == []
    browser.press("a")
    browser.wait("document.getElementById('review-place').textContent.includes('2 of 12 reviewed')")
    browser.press("s")
    browser.wait("document.getElementById('review-place').textContent.includes('1 skipped')")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#save-csv")
    downloaded(tmp_path, "scores.csv")
    rows = list(csv.DictReader(StringIO((tmp_path / "scores.csv").read_text())))
    decided = {row["original"]: (row["decision"], row["caption"]) for row in rows if row["decision"]}
    assert decided[first] == ("accepted", first)
    assert decided[second] == ("fixed", "a red square, corrected")
    assert sorted(decision for decision, _ in decided.values()) == ["accepted", "fixed", "skipped"]
    browser.click("#close-rows")


def test_two_captioners_are_compared(browser, image, tmp_path):
    rows_of_systems(browser, image, tmp_path)
    browser.click("#to-captioners")
    browser.wait("document.getElementById('win-rate')")
    text = browser.text("#win-rate")
    assert "first wins on 6 of 6 images, second on 0: 100 %" in " ".join(text.split())
    assert "61 % to 100 %" in text  # Wilson's interval
    gaps = browser.run(
        "return [...document.querySelectorAll('#disagreements small')].map(s => Number(s.textContent.split(' ').at(-1)))"
    )
    assert gaps == sorted(gaps, reverse=True)
    assert violations(browser) == []
    browser.click("#close-rows")


def test_intervals_of_a_comparison(browser):
    rate, gap = browser.run(
        "return import(MODULE + 'captioners.js').then(({ winRate, meanGap }) => [winRate(arguments[0]), meanGap(arguments[0])])",
        [1, 1, 1, -1, 0],
    )
    assert rate["share"] == pytest.approx(0.7)
    interval = scipy_stats.binomtest(35, 50).proportion_ci(method="wilson")
    (wide,) = browser.run(
        "return import(MODULE + 'captioners.js').then(({ winRate }) => [winRate([...Array(35).fill(1), ...Array(15).fill(-1)])])"
    )
    assert (wide["low"], wide["high"]) == pytest.approx((interval.low, interval.high), abs=1e-4)
    assert gap["mean"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("first", "second", "columns"),
    [
        ("a dog chases a cat", "a cat chases a dog", "a=a dog~cat chases=chases a=a cat~dog"),
        ("a red car", "a very red car", "a=a .!very red=red car=car"),
        ("a blue car", "a red car parked", "a=a blue!red car=car .!parked"),
    ],
)
def test_words_of_two_captions_are_aligned(browser, first, second, columns):
    words = [[{"text": word, "judged": word not in "a very"} for word in text.split()] for text in (first, second)]
    found = browser.run("return import(MODULE + 'difference.js').then(({ align }) => align(...arguments))", *words)
    signs = {"same": "=", "changed": "!", "moved": "~"}
    text = [
        ["." if column[side] is None else words[number][column[side]]["text"] for column in found]
        for number, side in enumerate(("first", "second"))
    ]
    assert " ".join(a + signs[c["kind"]] + b for a, b, c in zip(*text, found, strict=True)) == columns


def test_images_of_rows_are_matched_by_path_suffix(browser):
    found = browser.run(
        "return import(MODULE + 'rows.js').then(({ fileOf, indexed }) => arguments[0].map(([image, paths]) => "
        "fileOf(image, indexed(paths.map(path => ({ name: path.split('/').pop(), webkitRelativePath: path }))))?.webkitRelativePath ?? null))",
        [
            ["a/1.jpg", ["images/b/1.jpg"]],
            ["a/1.jpg", ["images/b/1.jpg", "images/a/1.jpg"]],
            ["/data/images/a/1.jpg", ["images/a/1.jpg", "images/b/1.jpg"]],
            ["1.jpg", ["images/b/1.jpg"]],
            ["1.jpg", ["images/b/1.jpg", "images/a/1.jpg"]],
            ["a\\1.jpg", ["images/a/1.jpg"]],
            [None, ["images/a/1.jpg"]],
        ],
    )
    assert found == [None, "images/a/1.jpg", "images/a/1.jpg", "images/b/1.jpg", None, "images/a/1.jpg", None]


def test_api_documentation_is_grouped_and_its_examples_work(running):
    with served(token=TOKEN) as address:
        running.view(1360, 900)
        running.open(f"{address}docs")
        running.wait("document.body.dataset.ready")
        groups = running.texts("h2")
        assert groups == ["Captions", "Training", "Monitoring", "Types"]
        routes = running.run("return [...document.querySelectorAll('.operation')].map(o => o.dataset.path)")
        assert {"/v1/score", "/v1/figure", "/v1/reward", "/metrics", "/healthz"} <= set(routes)
        locked = running.run("return [...document.querySelectorAll('.operation:has(.lock)')].map(o => o.dataset.path)")
        assert set(routes) - set(locked) == {"/healthz", "/readyz"}
        running.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        running.run("document.querySelector('#authorize input').focus()")
        running.type(TOKEN)
        running.run("document.querySelectorAll('.send').forEach(b => b.click())")
        running.wait(
            "document.querySelectorAll('.answer').length === document.querySelectorAll('.send').length"
            " && [...document.querySelectorAll('.answer')].every(a => a.textContent !== '…')",
            seconds=60,
        )
        answers = running.run(
            "return [...document.querySelectorAll('.answer')].map(a => a.textContent.split('\\n')[0])"
        )
        assert set(answers) == {"HTTP 200"}, answers
        loaded = running.run("return performance.getEntriesByType('resource').map(one => one.name)")
        assert all(name.startswith((address, "data:")) for name in loaded), loaded
        assert running.complaints == []
        assert violations(running) == []


def test_api_documentation_without_a_token_has_no_padlocks_and_is_dark_in_the_dark(running, address):
    running.view(390, 844, dark=True)
    running.open(f"{address}docs")
    running.wait("document.body.dataset.ready")
    assert running.count(".lock, #authorize") == 0
    paper = running.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(paper) < 80
    assert running.run("return document.documentElement.scrollWidth <= innerWidth")
    running.view(1360, 900)


def pasted(browser: Browser, *lines: str) -> None:
    focus(browser)
    browser.run(
        "const data = new DataTransfer(); data.setData('text', arguments[0]);"
        "document.activeElement.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))",
        "\n".join(lines),
    )


def test_seventy_captions_are_batched_and_a_too_long_one_does_not_affect_others(browser, image):
    opened(browser, image, "a red")
    browser.run(
        "window.sent = []; const old = fetch; window.fetch = (path, options) => { if (path.startsWith('v1/explain'))"
        " sent.push(JSON.parse(options.body).items.length); return old(path, options); }"
    )
    pasted(browser, *(f" square number {number}" for number in range(69)), "a" * 20_001)
    browser.wait("document.querySelectorAll('#captions .card').length === 70")
    leave(browser)
    browser.wait(
        "document.querySelectorAll('#captions .match').length === 69 && document.querySelector('.card > .note')"
    )
    assert max(browser.run("return sent")) <= 16
    assert "at most 20000 bytes" in browser.text(".card > .note")
    assert browser.run("return document.getElementById('status').textContent.trim()") == ""
    browser.reload()
    browser.wait("document.querySelectorAll('#captions .match').length === 69", seconds=60)


def test_progress_is_shown_during_slow_requests(browser, image):
    opened(browser, image, "a red square")
    browser.run(
        "const old = fetch; window.fetch = async (path, options) => { if (path.startsWith('v1/explain'))"
        " await new Promise(done => { window.release = done; }); return old(path, options); }"
    )
    focus(browser)
    browser.type(" today")
    browser.wait("window.release && document.querySelector('#progress.on') && document.querySelector('.card.waits')")
    assert browser.run("return document.querySelector('.card').ariaBusy") == "true"
    browser.run("window.release()")
    browser.wait(f"{READY} && !document.querySelector('#progress.on')")


def test_last_selected_image_wins(browser, tmp_path):
    Image.effect_noise((6000, 5000), 40).save(tmp_path / "large.png")
    browser.run(
        "window.slow = createImageBitmap; window.createImageBitmap = async (file) => { const found = await slow(file);"
        " if (file.name === 'large.png') { await new Promise(done => { window.release = done; }); } return found; }"
    )
    browser.choose("#file", tmp_path / "large.png")
    browser.wait("window.release")
    browser.run("document.querySelectorAll('#samples button')[2].click()")
    browser.wait(f"location.hash.includes('chelsea') && {READY}")
    browser.run("window.release()")
    browser.run("return new Promise(done => setTimeout(done, 300))")
    assert "chelsea" in browser.run("return location.hash")
    browser.run(
        "const old = fetch; window.fetch = async (path, options) => { if (String(path).includes('coffee'))"
        " await new Promise(done => { window.late = done; }); return old(path, options); }"
    )
    browser.run("const b = document.querySelectorAll('#samples button'); b[1].click(); b[3].click()")
    browser.wait(f"!location.hash.includes('chelsea') && {READY}")
    chosen = browser.run("return location.hash")
    browser.run("window.late()")
    browser.run("return new Promise(done => setTimeout(done, 300))")
    assert browser.run("return location.hash") == chosen
    assert "coffee" not in chosen


def test_url_updates_are_throttled(browser, image):
    opened(browser, image, "a red square")
    browser.run(
        "window.times = 0; const old = history.replaceState.bind(history); history.replaceState = (...given) => {"
        " if (++times > 3) throw new DOMException('too often', 'SecurityError'); return old(...given); }"
    )
    focus(browser)
    for letter in " of forty letters that come one by one":
        browser.type(letter)
    assert browser.run(TEXTS) == ["a red square of forty letters that come one by one"]
    assert browser.run("return times") < 20
    assert browser.complaints == []


def test_enter_adds_a_visible_card_below(browser, image):
    opened(browser, image, "a red")
    pasted(browser, *(f" square number {number}" for number in range(12)))
    leave(browser)
    browser.wait(f"document.querySelectorAll('#captions .match').length === 12 && {READY}")
    focus(browser)
    browser.press("Enter")
    browser.wait("document.activeElement.matches('textarea') && document.activeElement.value === ''")
    assert (
        browser.run("return [...document.querySelectorAll('#captions textarea')].indexOf(document.activeElement)") == 1
    )
    box = browser.run("const b = document.activeElement.getBoundingClientRect(); return [b.top, b.bottom, innerHeight]")
    assert 0 <= box[0] < box[1] <= box[2]


def test_an_example_that_cannot_be_loaded_is_requested_again(browser):
    browser.run("window.real = fetch; window.fetch = () => Promise.reject(new TypeError('gone'))")
    browser.run("document.querySelectorAll('#samples button')[2].click()")
    browser.wait("document.querySelector('#status.error')?.textContent.includes('cannot be reached')")
    browser.run("window.fetch = window.real; dispatchEvent(new Event('online'))")
    browser.wait(f"location.hash.includes('chelsea') && {READY}")


def test_removed_caption_can_be_restored(browser):
    texts = browser.run(TEXTS)
    browser.click(".card:nth-child(2) [data-tool=remove]")
    browser.wait("document.querySelectorAll('#captions .card').length === 2")
    browser.click("#status button")
    browser.wait("document.querySelectorAll('#captions .card').length === 3")
    browser.wait(READY)
    assert browser.run(TEXTS) == texts


def test_text_and_files_can_be_dragged(browser):
    script = (
        "const data = new DataTransfer(); %s; const event = new DragEvent('dragover', { dataTransfer: data, cancelable: true, bubbles: true });"
        " document.querySelector('textarea').dispatchEvent(event); return event.defaultPrevented"
    )
    assert browser.run(script % "data.setData('text/plain', 'a dog')") is False
    assert browser.run(script % "data.items.add(new File(['x'], 'a.png', { type: 'image/png' }))") is True


def test_large_image_is_downscaled_and_browser_formats_converted(running, tmp_path):
    Image.effect_noise((1200, 1000), 40).save(tmp_path / "large.png")
    Image.new("RGB", (90, 60), "red").save(tmp_path / "red.avif")
    with served(max_pixels=300_000) as address:
        running.view(1360, 900)
        running.open(address)
        running.wait("document.querySelector('#captions .card')")
        running.run(
            "window.sent = []; const old = fetch; window.fetch = (path, options) => { if (path === 'v1/images')"
            " sent.push(options.body.get('image').type); return old(path, options); }"
        )
        running.choose("#file", tmp_path / "large.png")
        running.wait("document.getElementById('image-note')?.textContent.includes('Shrunk from 1 to 0 megapixels')")
        focus(running)
        running.type("grey noise")
        running.wait(READY)
        running.choose("#file", tmp_path / "red.avif")
        running.wait("location.hash.includes('image') && document.querySelector('textarea').value === ''")
        focus(running)
        running.type("a red square")
        running.wait(READY)
        assert running.run("return sent") == ["image/jpeg", "image/jpeg"]


def test_python_export_escapes_user_text(browser, image, tmp_path):
    """An encoding comment in the first two lines would change how Python decodes the file (PEP 263)."""
    name = "# coding: utf-7 +AAo-import os +AAo-os._exit(7).png"
    (tmp_path / name).write_bytes(image.read_bytes())
    hostile = 'a "red" square\\u2028 \'\'\' """ {x} 猫 😀'
    opened(browser, tmp_path / name, hostile)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("[data-export=python]")
    found = downloaded(tmp_path, "*.py")
    lines = found.read_bytes().splitlines()
    assert lines[0] == b"# Recomputes the numbers of the page; the image must be next to this file."
    assert lines[1] == b"from msdscore import Scorer"
    assert found.read_bytes().isascii()
    run = subprocess.run([sys.executable, found.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert hostile in run.stdout


def test_wrong_token_is_reported_and_valid_token_survives_a_reload(running):
    with served(token=TOKEN) as address:
        running.view(1360, 900)
        running.open(address)
        running.wait("document.activeElement.id === 'token'")
        running.type("not the token of it")
        running.click("#token-form button")
        running.wait("document.getElementById('status').textContent.includes('does not accept this token')")
        running.run("const t = document.getElementById('token'); t.value = ''; t.focus()")
        running.type(TOKEN)
        running.click("#token-form button")
        running.wait(READY)
        running.reload()
        running.wait(READY)


def test_theme_can_be_switched_and_is_stored(browser):
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.click("#theme")
    browser.wait("document.documentElement.dataset.theme === 'dark'")
    assert browser.run(paper) != light
    browser.reload()
    browser.wait(READY)
    assert browser.run(paper) != light
    browser.click("#theme")
    assert browser.run(paper) == light
    browser.run("localStorage.clear()")


def test_word_overlay_does_not_change_image_or_layout(browser):
    place = "const b = document.getElementById('samples').getBoundingClientRect(); return b.top"
    before, pixel = browser.run(place), "return document.querySelector('#stages .base').toDataURL()"
    image = browser.run(pixel)
    browser.hover(".card .w[style]")
    browser.wait("document.querySelector('.veil.on')")
    assert browser.run(place) == before
    assert browser.run(pixel) == image
    alphas = browser.run(
        "const c = document.querySelector('.veil'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const a = []; for (let i = 3; i < d.length; i += 4) a.push(d[i]); return [Math.min(...a), Math.max(...a), new Set(a).size]"
    )
    assert alphas[0] < 30
    assert alphas[1] > 100
    assert alphas[2] > 40  # smooth instead of the patch grid


def test_several_images_are_scored_and_saved_as_csv(browser, image, tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.png").write_bytes(image.read_bytes())
    (tmp_path / "one.txt").write_text("a red square\n")
    (tmp_path / "captions.csv").write_text('two.png,"=a blue, square"\n')
    browser.click("#to-file")
    browser.wait("document.getElementById('many-images')")
    browser.choose(
        "#many-images", *(tmp_path / name for name in ("one.png", "two.png", "three.png", "one.txt", "captions.csv"))
    )
    browser.wait(
        "document.querySelectorAll('#rows li').length === 3 && document.querySelectorAll('#rows .said').length === 2"
    )
    browser.run("document.querySelector('.describe').focus()")
    browser.type("a green dog")
    leave(browser)
    browser.wait("document.getElementById('here-place').textContent.includes('3 rows, 3 scored')")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#save-csv")
    downloaded(tmp_path, "scores.csv")
    browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click("#copy-table")
    browser.wait("document.getElementById('rows-note').textContent.startsWith('Copied')")
    pasted = browser.run("return navigator.clipboard.readText()").split("\n")
    assert [line.split("\t")[0] for line in pasted] == ["image", "one.png", "two.png", "three.png"]
    browser.click("#close-rows")
    rows = list(csv.DictReader(StringIO((tmp_path / "scores.csv").read_text())))
    assert [row["image"] for row in rows] == ["one.png", "two.png", "three.png"]
    assert rows[1]["caption"] == "'=a blue, square"  # not a formula in a spreadsheet
    assert float(rows[0]["msd"]) == pytest.approx(Scorer("toy").score(image, "a red square").msd, abs=1e-5)


def test_folder_is_scored_with_its_captions(browser, image, tmp_path):
    folder = tmp_path / "photos" / "first"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.png").write_bytes(image.read_bytes())
        (folder / f"{name}.txt").write_text(f"a red square, number {name}\n")
    browser.click("#to-file")
    browser.wait("document.getElementById('many-folder')")
    browser.choose("#many-folder", tmp_path / "photos")
    browser.wait("document.querySelectorAll('#rows .said').length === 2")
    assert sorted(browser.texts("#rows .said")) == ["a red square, number one", "a red square, number two"]


def test_page_and_api_documentation_work_behind_a_prefix(running):
    with served(prefix="/msd") as address:
        running.view(1360, 900)
        running.open(f"{address}msd/")
        running.wait(READY)
        running.open(f"{address}msd/docs")
        running.wait("document.body.dataset.ready")
        running.run("document.querySelector('[data-path=\"/healthz\"]').open = true")
        running.click('[data-path="/healthz"] .send')
        running.wait("document.querySelector('.answer')?.textContent.startsWith('HTTP 200')")
        example = running.run("return document.querySelector('[data-path=\"/healthz\"] .example').textContent")
        assert example == f"curl -s {address}msd/healthz"


@pytest.mark.parametrize(("width", "dark"), [(1360, False), (390, True)])
def test_scored_file_view_is_accessible(browser, width, dark):
    browser.view(width, 844 if width == 390 else 900, dark=dark)
    rows = [{"caption": f"a dog {number}", "match": number / 10, "image": "a/1.jpg"} for number in range(7)]
    rows.append({"caption": "x" * 300, "match": 0.9, "image": f"{'long' * 40}.jpg", "warnings": "y" * 90})
    dropped_file(browser, f"{'z' * 90}.jsonl", "\n".join(map(json.dumps, rows)))
    browser.wait("document.querySelectorAll('#rows li').length === 8", seconds=60)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert violations(browser) == []


@pytest.mark.parametrize(("width", "dark"), [(1360, False), (1360, True), (390, False), (390, True)])
def test_page_is_accessible_and_fits_the_window(browser, width, dark):
    browser.view(width, 844 if width == 390 else 900, dark=dark)
    browser.click("#exports summary")
    focus(browser)
    browser.type(f" {'Donaudampfschiff' * 9}")
    leave(browser)
    for number in (0, 1):
        for tool in ("numbers", "compare"):
            browser.run("document.querySelectorAll(`[data-tool=${arguments[1]}]`)[arguments[0]].click()", number, tool)
    browser.click("[data-map=penalty]")
    browser.wait(f"document.querySelectorAll('#stages .base').length === 2 && {READY}")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert violations(browser) == []
