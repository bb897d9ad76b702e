"""A real headless Chromium for tests, where one is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A driven browser with its console kept; skips the test where there is none."""
    selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install 'msdscore[test]'")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with chromedriver on the PATH; Debian: apt-get install chromium chromium-driver")
    from selenium import webdriver

    assert selenium is not None
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: Any) -> list[str]:
    """What the browser's console says went wrong."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
