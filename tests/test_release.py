"""Release: the wheel works in a clean environment, is typed, and has a consistent version."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from msdscore.version import __version__
from test_docs_install import DISTRIBUTIONS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "msdscore"


def modules():
    return sorted(SOURCE.rglob("*.py"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs the extra msdscore[test]")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=120)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_wheel_contains_only_the_package(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    here = {str(path.relative_to(ROOT / "src")) for path in SOURCE.rglob("*") if path.is_file()}
    wanted = {name for name in here if "__pycache__" not in name}
    assert wanted <= names
    assert "msdscore/py.typed" in names
    rest = {name for name in names - wanted if ".dist-info/" not in name}
    assert not rest
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)
    assert built[0].stat().st_size < 60 << 20


def test_source_distribution_is_complete(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "tests/conftest.py",
        "CITATION.cff",
        "docs/index.md",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "weights/src"))]
    assert built[1].stat().st_size < 20 << 20  # the weights are a distribution of their own


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Create an environment with the wheel; other libraries come from the current one, so nothing is downloaded."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    libraries = Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(built[0])], check=True, timeout=120)
    # A .pth file does not process the .pth files of its folder, so the editable install is not importable.
    (libraries / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python, *words, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_wheel_works_in_a_clean_environment(installed, tmp_path):
    found = run(installed, "-c", "import msdscore, sys; print(msdscore.__file__, 'torch' in sys.modules)", cwd=tmp_path)
    place, heavy = found.stdout.split()
    assert Path(place).is_relative_to(installed.parents[1])
    assert heavy == "False"
    command = [str(installed.with_name("msdscore")), "--version"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == f"msdscore {__version__}\n"
    Image.fromarray(np.full((40, 40, 3), (220, 30, 30), np.uint8)).save(tmp_path / "red.png")
    done = run(installed, "-m", "msdscore", "score", "red.png", "a red wall", "-e", "toy", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


CONSUMER = """
from pathlib import Path

from msdscore import Paper, Score, Scorer

scorer = Scorer("toy", Paper.named("short", kappa=30.0))
score: Score = scorer.score(Path("a.jpg"), "a dog")
number: float = score.msd
best: str = scorer.rank("a.jpg", ["a dog", "a cat"]).best
scorer.score("a.jpg")  # E: call-arg
wrong: int = score.signature  # E: assignment
"""


@pytest.mark.slow
def test_package_is_typed(tmp_path):
    pytest.importorskip("mypy", reason="needs the extra msdscore[check]")
    file = tmp_path / "consumer.py"
    file.write_text(CONSUMER)
    # With the settings and cache of the project, so that torch is not analysed again.
    words = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), str(file)]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=600,
    )
    expected = [(n, line.split("# E: ")[1]) for n, line in enumerate(CONSUMER.splitlines(), 1) if "# E: " in line]
    found = re.findall(r"consumer\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    assert [(int(line), kind) for line, kind in found] == expected, done.stdout


def test_version_changelog_and_citation_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == __version__
    assert re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.M)[1] == __version__.partition(".dev")[0]


def test_citation_matches_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    paper = citation["preferred-citation"]
    assert (paper["year"], paper["url"]) == (2026, "https://arxiv.org/abs/2605.06080")
    bib = (ROOT / "lab/src/msdscore_lab/citations.bib").read_text(encoding="utf-8")
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in bib
    assert paper["title"].partition(": ")[2] in bib
    cited = re.findall(r"arXiv:\d{4}\.\d{5}", (ROOT / "lab/src/msdscore_lab/metrics/table.toml").read_text())
    assert paper["identifiers"][0]["value"] in cited


def test_publish_workflow_checks_and_attests():
    steps = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"))["jobs"]
    build, publish = ("\n".join(map(str, steps[job]["steps"])) for job in ("build", "publish"))
    assert build.index(".ci/run") < build.index("make release") < build.index("twine check --strict")
    assert publish.index("attest-build-provenance") < publish.index("gh-action-pypi-publish")
    assert "secrets." not in publish  # a trusted publisher
    assert all(name.replace("-", "_") in build for name in DISTRIBUTIONS)
    assert steps["publish"]["permissions"]["id-token"] == "write"
    assert steps["publish"]["needs"] == "build"


def test_actions_are_pinned_by_digest():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [line for file in files for line in re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))]
    assert used
    assert not [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line)]


POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
GONE_IN_313 = set(
    re.findall(
        r"\w+",
        "aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp mailcap msilib nis nntplib ossaudiodev "
        "pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib",
    )
)


def imported(node):
    if isinstance(node, ast.Import):
        return {name.name.split(".")[0] for name in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_import_on_windows_and_on_every_supported_python(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 11))
    for node in tree.body:
        assert not imported(node) & POSIX_ONLY, f"{path}: imports a module that Windows does not have"
    for node in ast.walk(tree):
        assert not imported(node) & GONE_IN_313, f"{path}: imports a module that Python 3.13 does not have"
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            assert name not in {"os.fork", "os.getuid", "os.mkfifo", "signal.SIGALRM", "signal.SIGHUP", "os.geteuid"}, (
                path
            )


def test_supported_python_versions_are_consistent():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [name.rsplit(" ", 1)[1] for name in project["classifiers"] if " 3." in name]
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == ">=3.11"
