"""Every `pip install` line of the pages works in a fresh environment, from built wheels and a package registry."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from test_docs_examples import PAGES, ROOT

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
LINE = re.compile(r"pip install ([^`#\n\"]+)")
DISTRIBUTIONS = {"msdscore": ".", "msdscore-mini": "weights", "msdscore-torch": "backbones", "msdscore-lab": "lab",
                 "msdscore-serve": "serve"}  # fmt: skip


def lines():
    """Return the arguments of all `pip install` lines, except those with an ellipsis or another registry."""
    pages = [*PAGES, *NOTEBOOKS, *(ROOT / "examples").rglob("*.yaml")]
    found = {line.strip() for page in pages for line in LINE.findall(page.read_text(encoding="utf-8"))}
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
    assert {
        "msdscore",
        "'msdscore[demo]'",
        "./weights '.[files]'",
        "'msdscore[trl]'",
        "'msdscore[hf,ray]' s3fs",
    } <= set(found)


def requirements_of_errors():
    """Yield the requirement in each call that raises an error with an install line, and the module."""
    for folder in ("src", "backbones/src", "serve/src", "lab/src"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = {node.targets[0].id: node.value.value for node in ast.walk(tree)
                     if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                     and isinstance(node.value, ast.Constant)}  # fmt: skip
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                words = {word.arg: getattr(word.value, "value", names.get(getattr(word.value, "id", None)))
                         for word in call.keywords}  # fmt: skip
                called = getattr(call.func, "id", "")
                if called == "require" and words.get("extra"):
                    of, extra = str(words.get("of", "msdscore")), str(words["extra"])
                    yield f"{of}[{extra}]", path
                elif called in ("missing_extra", "install_line") and isinstance(call.args[-1], ast.Constant):
                    yield str(call.args[-1].value), path


def test_requirements_of_errors_exist():
    found = dict(requirements_of_errors())
    assert {"msdscore[hf]", "msdscore[files]", "msdscore-lab[train]", "msdscore-mini"} <= found.keys()
    for requirement, path in found.items():
        name, _, extra = requirement.rstrip("]").partition("[")
        project = tomllib.loads((ROOT / DISTRIBUTIONS[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert not extra or extra in project["optional-dependencies"], f"{path}: {requirement}"


def test_install_line_is_that_of_the_checkout_or_of_the_registry(tmp_path):
    shutil.copytree(ROOT / "src" / "msdscore", tmp_path / "site" / "msdscore")
    info = tmp_path / "site" / "msdscore-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msdscore\nVersion: 1\n")
    code = "import sys; from msdscore.errors import install_line as f; print(*map(f, sys.argv[1:]), sep='\\n')"
    wanted = ["msdscore[hf,ray]", "msdscore-lab", "msdscore-mini", "timm"]

    def printed(folder):
        # Without the packages of this environment.
        command = [sys.executable, "-S", "-c", code, *wanted]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.splitlines()

    plain = [
        "pip install 'msdscore[hf,ray]'",
        "pip install msdscore-lab",
        "pip install msdscore-mini",
        "pip install timm",
    ]
    build = f"cd {ROOT} && pip wheel --no-deps -w dist . ./weights ./backbones ./serve ./lab"
    local = [*(f"{build} && {line} -f dist" for line in plain[:3]), plain[3]]
    assert printed(tmp_path / "site") == plain
    (info / "direct_url.json").write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {}}))
    assert printed(tmp_path / "site") == printed(ROOT / "src") == local
    (info / "direct_url.json").write_text(json.dumps({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}))
    assert printed(tmp_path / "site") == plain


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
