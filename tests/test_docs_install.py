"""Every `pip install` line of the pages works in a fresh environment, from built wheels and a package registry."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_docs_examples import PAGES, ROOT

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
LINE = re.compile(r"pip install ([^`#\n\"]+)")
DISTRIBUTIONS = {"msdscore": ".", "msdscore-mini": "weights", "msdscore-torch": "backbones", "msdscore-lab": "lab",
                 "msdscore-serve": "serve"}  # fmt: skip


def lines():
    """Return the arguments of all `pip install` lines, except those with an ellipsis or another registry."""
    found = {line.strip() for page in [*PAGES, *NOTEBOOKS] for line in LINE.findall(page.read_text(encoding="utf-8"))}
    return sorted(line for line in found if "…" not in line and "--index-url" not in line)


def pip(python, *words, cwd, index):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PIP_FIND_LINKS"] = f"{environment.get('PIP_FIND_LINKS', '')} {index}".strip()
    command = [python, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1200)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Build the wheels of the distributions into a folder."""
    pytest.importorskip("hatchling", reason="needs the extra msdscore[test]")
    folder = tmp_path_factory.mktemp("wheels")
    for path in DISTRIBUTIONS.values():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=ROOT / path, check=True, capture_output=True, timeout=120)
    if pip(sys.executable, "download", "-q", "--no-deps", "-d", "six", "six", cwd=folder, index=folder).returncode:
        pytest.skip("needs a package registry")
    return folder


@pytest.fixture
def checkout(tmp_path):
    """Copy the tracked files of the repository."""
    for name in subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(
        b"\0"
    ):
        if name and not name.startswith((b"docs/", b"perf/", b"tests/")):
            target = tmp_path / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / os.fsdecode(name), target)
    return tmp_path


def fresh(folder):
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def test_install_lines_are_found():
    found = lines()
    assert {"msdscore", "'msdscore[demo]'", ". ./weights", "'msdscore[trl]'"} <= set(found)


@pytest.mark.slow
def test_all_install_lines_can_be_resolved(index, checkout, tmp_path):
    """All in one call: versions that satisfy all requirements on these distributions satisfy each of them."""
    words = {word for line in lines() for word in shlex.split(line) if word.startswith("msdscore")}
    python = fresh(tmp_path / "environment")
    done = pip(python, "install", "--dry-run", *sorted(words), cwd=checkout, index=index)
    if missing := re.search(r"No matching distribution found for (?!msdscore)(\S+)", done.stderr):
        pytest.skip(f"the registry has no {missing[1]}")
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", ["'msdscore[demo]'", "./weights '.[demo]'"])
def test_the_first_lines_of_the_readme_work_in_a_fresh_environment(line, index, checkout, tmp_path):
    python = fresh(tmp_path / "environment")
    done = pip(python, "install", *shlex.split(line), cwd=checkout, index=index)
    assert done.returncode == 0, done.stderr
    assert pip(python, "check", cwd=checkout, index=index).returncode == 0
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    place = tmp_path / "elsewhere"
    place.mkdir()
    for words in (["doctor"], ["demo"]):
        command = [str(python.with_name("msdscore")), *words]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    assert list(Path(place, "demo-out").glob("*.html"))
