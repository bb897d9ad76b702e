"""Documentation links resolve to files, pages and headings, and the site lists every page."""

import re

import pytest

from msdscore import Scorer
from msdscore.encoders.registry import encoder_claims
from test_docs_examples import PAGES, ROOT

CODE = re.compile(r"^(```|~~~).*?^\1", re.S | re.M)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.M)


def links(page):
    return LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))


def anchors(page):
    """Return the anchors of the headings, as on code hosts and the site."""
    found = set()
    for heading in HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.lower())))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leads out of the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link} names no heading of {target.name}"


def listed(page):
    """Return the pages that a page lists."""
    for body in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        for line in body.splitlines():
            if line and not line.startswith(":"):
                yield (page.parent / line.split("<")[-1].rstrip(">").strip()).resolve()


def test_the_site_lists_every_page_once():
    docs = ROOT / "docs"
    found = [place for page in docs.rglob("*.md") for place in listed(page)]
    assert len(found) == len(set(found))
    pages = {path.with_suffix("") for path in docs.rglob("*") if path.suffix in {".md", ".ipynb"}}
    assert set(found) == pages - {docs / "index"}


def test_commands_page_documents_all_commands(monkeypatch):
    from typer.main import get_command

    from msdscore.cli.app import app

    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import commands

    page = commands.reference()
    program = get_command(app)
    for name in program.list_commands(None):
        assert f"## msdscore {name}\n" in page
        for nested in getattr(program.get_command(None, name), "commands", ()):
            assert f"### msdscore {name} {nested}\n" in page
    assert "`-o, --output" in page
    assert "[bold]" not in page
    score = page.partition("## msdscore score\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| \*\*(.*)\*\* \| \|$", score, re.M)[:4] == ["Input", "Output", "Scoring", "Speed"]


def test_tests_of_the_table_of_guarantees_exist():
    folder, file = ROOT / "tests", ""
    for name, test in re.findall(
        r"`(test_\w+\.py)?(?:::(test_\w+))?", (folder / "README.md").read_text(encoding="utf-8")
    ):
        file = name or file
        assert not test or f"def {test}(" in (folder / file).read_text(encoding="utf-8"), f"{file} has no {test}"
        assert (folder / file).is_file(), f"no file {file}"


def test_pages_outside_the_laboratory_stay_short():
    docs = ROOT / "docs"
    pages = [page for page in docs.rglob("*.md") if not page.is_relative_to(docs / "lab")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 18_200


def test_pages_and_notebooks_import_only_names_that_stay():
    docs = ROOT / "docs"
    pages = [
        path for path in docs.rglob("*") if path.suffix in {".md", ".ipynb"} and not path.is_relative_to(docs / "lab")
    ]
    found = {
        name for path in pages for name in re.findall(r"from (msdscore[\w.]*) import", path.read_text(encoding="utf-8"))
    }
    assert "msdscore" in found
    assert {name for name in found if not name.startswith(("msdscore_torch.integrations.", "msdscore_lab."))} == {
        "msdscore"
    }


def test_tables_of_near_misses_are_those_that_were_measured_with_the_present_encoder():
    claims = encoder_claims(Scorer().signature)
    assert claims is not None, (
        "measure again: python perf/claims.py DATA near_misses -o src/msdscore/encoders/claims.json"
    )
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    for row in (*claims["captions"], *claims["words"], *claims["marks"]):
        values = [f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()]
        assert any([cell for cell in cells if cell] == values for cells in rows), row
    on_topic = {row["name"]: row["on topic"] for row in claims["captions"]}
    for name in ("README.md", "weights/README.md", "docs/models/mini.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for kind in ("true captions", "the same with one thing changed", "captions of other images"):
            assert f"{on_topic[kind]} %" in text, (name, kind)
    assert encoder_claims("msd|enc:toy@1") is None
