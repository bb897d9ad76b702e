"""Update the screenshots of the documentation: `python tools/screenshots.py`.

Requires Chromium on the PATH and the extras serve, mini and demo. All images of pages in `docs/images` are written by
this program, with the default encoder.
"""

import sys
import time
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, chromium  # type: ignore[import-not-found]  # noqa: E402
from msdscore import Scorer, sample_image  # noqa: E402
from msdscore.explain.explanation import encoded  # noqa: E402
from msdscore.report import demo  # noqa: E402
from serving import served  # type: ignore[import-not-found]  # noqa: E402

IMAGES = ROOT / "docs" / "images"
QUALITY = 75
DESK, PHONE, TALL = (1360, 900), (390, 844), (1120, 1190)
CAT = ["a close up of an orange cat looking at the camera", "an orange cat wearing a blue hat next to a dog"]
PEOPLE = ["a red cup of espresso on a saucer", "coffee in a cup with a spoon on a wooden table"]
REFER = (
    "const lines = document.getElementById('reference-lines'); lines.value = arguments[0];"
    " lines.dispatchEvent(new Event('input', { bubbles: true }))"
)
READY = (
    "document.querySelector('.w') && !document.querySelector('.stale') && !document.querySelector('#progress.on') "
    "&& document.querySelectorAll('#captions .match').length === document.querySelectorAll('#captions .card').length"
)
ALL_SCORED = "document.getElementById('here-place')?.textContent.trim().match(/^(\\d+) rows, \\1 scored/)"


def main() -> None:
    """Open every page and save a screenshot."""
    scorer = Scorer()
    with served(scorer.pipeline) as address, chromium(*DESK) as browser:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        for name, (width, height), dark in (
            ("page", DESK, False),
            ("page-dark", DESK, True),
            ("page-phone", PHONE, False),
        ):
            browser.view(width, height, dark=dark)
            browser.open(address)
            browser.wait(READY, seconds=120)
            write(browser, name)
        browser.view(*DESK)
        browser.open(address)
        browser.wait(READY, seconds=120)
        browser.hover(".card:nth-child(1) .w.tinted")
        browser.wait("document.querySelector('.veil.on')")
        write(browser, "page-word")
        browser.hover("h1")
        browser.click("[data-tool=break]")
        browser.wait("document.querySelector('.broken table')", seconds=120)
        write(browser, "page-break")
        browser.click("[data-tool=break]")
        browser.click("#references summary")
        browser.run(REFER, "\n".join(PEOPLE))
        browser.wait("document.querySelectorAll('.refs').length === 3", seconds=120)
        write(browser, "page-references")
        browser.click("#to-file")
        browser.click("#try-examples")
        browser.wait(ALL_SCORED, seconds=300)
        write(browser, "page-many")
        browser.click("#to-review")
        browser.wait("document.querySelector('#review .said .w')", seconds=60)
        write(browser, "page-review")
        with TemporaryDirectory() as folder:
            browser.view(*TALL)
            browser.open(demo.write(demo.show(scorer), Path(folder)))
            write(browser, "demo")
            browser.view(*DESK)
    figure = scorer.explain(sample_image("cat"), CAT)
    save(BytesIO(encoded(figure.items, "png")), "why-cat", width=DESK[0])


def write(browser: Browser, name: str) -> None:
    """Save a screenshot of the window as a JPEG."""
    time.sleep(0.6)  # wait for animations
    with TemporaryDirectory() as folder:
        browser.screenshot(Path(folder) / "shot.png")
        save(BytesIO((Path(folder) / "shot.png").read_bytes()), name)


def save(image: BytesIO, name: str, *, width: int | None = None) -> None:
    """Save an image as a JPEG, downscaled to at most `width`."""
    shot = Image.open(image).convert("RGB")
    if width is not None and shot.width > width:
        shot = shot.resize((width, round(shot.height * width / shot.width)), Image.Resampling.LANCZOS)
    shot.save(IMAGES / f"{name}.jpg", quality=QUALITY, optimize=True)


if __name__ == "__main__":
    main()
