"""Stable names: the code has exactly the names that the stored list and its page promise."""

import json

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
import stable


@pytest.fixture(scope="module")
def names():
    return stable.stable()


@pytest.mark.parametrize("part", ["python", "commands", "columns", "http", "signature"])
def test_names_are_those_of_the_stored_list(names, part):
    stored = json.loads(stable.STORED.read_text(encoding="utf-8"))
    assert names[part] == stored[part], "a stable name changed; if this is meant, run: python tools/stable.py"


def test_page_has_the_lists(names):
    page = stable.PAGE.read_text(encoding="utf-8")
    assert stable.filled(page, names) == page
    assert all(text in page for text in stable.lists(names).values())
