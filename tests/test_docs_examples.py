"""Examples of the documentation: Python and commands are run; blocks that cannot run here are compiled or parsed.

A block that needs the network, a GPU or other data has `<!-- not run: reason -->` on the line above.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from command_line import completed
from msdscore import sample_image
from msdscore.cli.app import app
from msdscore.errors import MissingExtraError
from msdscore.scoring.spec import ScorerSpec
from serving import served

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>[^\n]*)\n(?P<body>.*?)^```[ ]*$",
    re.S | re.M,
)
EXPECTED = re.compile(r"#\s*→\s*(.*?)\s*$")
PYTHON, SHELL = ("python", "py"), ("", "console", "bash", "sh")
# Pages whose commands are run, in order and in the folder of their Python code; on other pages commands are parsed.
WALKED = ("README.md", "tour.md", "guide.md", "explain.md", "trust.md", "extend.md")
BEFORE = {"explain.md": "msdscore score rows.jsonl -o scores.parquet"}  # from a previous page
ENDLESS = ("serve",)
SERVICE = ROOT / "docs" / "service.md"
ADDRESS = re.compile(r"(http://)?localhost:8000")


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` says why it is not run."""

    page: Path
    line: int
    kind: str
    body: str
    reason: str | None

    @property
    def id(self):
        return f"{self.page.name}:{self.line}"


def blocks(*kinds, page=None):
    for path in PAGES if page is None else [page]:
        text = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match["kind"] in kinds:
                line = text[: match.start("body")].count("\n")
                yield Block(path, line, match["kind"], match["body"], match["reason"])


def params(found):
    return [pytest.param(block, id=block.id) for block in found]


@pytest.fixture(scope="module", autouse=True)
def _encoders_load_once():
    """Load each encoder only once for all pages."""
    with pytest.MonkeyPatch.context() as patch:
        build = ScorerSpec.build
        kept = {}

        def once(spec, **more):
            key = repr((spec, more))
            if key not in kept:
                kept[key] = build(spec, **more)
            return kept[key]

        patch.setattr(ScorerSpec, "build", once)
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create the files that the pages use: two photographs, a folder of them, rows with captions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as a notebook or `python FILE` in this folder has it
    cat = Image.open(sample_image("cat"))
    for name in ("cat.jpg", "dog.jpg", "photos/cat.jpg", "photos/dog.jpg"):
        Path(name).parent.mkdir(exist_ok=True)
        (cat if "cat" in name else cat.transpose(Image.Transpose.FLIP_LEFT_RIGHT)).save(name)
    captions = ("a close up of a cat", "a cat next to a dog")
    rows = [{"image": name, "caption": text} for name in ("cat.jpg", "dog.jpg") for text in captions]
    for name in ("rows.jsonl", "captions.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run_python(body, names):
    """Execute a block; if a line ends in `# → text`, its value must print as that text."""
    lines = body.splitlines()
    for node in ast.parse(body).body:
        code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        expected = EXPECTED.search(lines[node.end_lineno - 1])
        if expected and isinstance(node, ast.Expr):
            assert str(eval(code, names)) == expected[1], code
        else:
            exec(code, names)


def lines_of(body):
    """Return the commands of a shell block, without prompts and comments."""
    for line in body.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ")
        if words := shlex.split(command.replace("[--", "--").replace("]", ""), comments=True):
            yield command, words


def parse(words):
    """Parse a command with the parser of the program."""
    command = get_command(app)
    context = command.make_context("msdscore", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def run_shell(body):
    for command, words in lines_of(body):
        if words[0] == "echo":
            subprocess.run(command, shell=True, check=True)
        elif words[0] == "msdscore" and words[1] in ENDLESS:
            parse(words[1:])
        elif words[0] == "msdscore":
            completed(*words[1:])


def is_run(page):
    return any(block.reason is None for block in blocks(*PYTHON, page=page)) or page.name in WALKED


@pytest.mark.parametrize(
    "page", [page for page in PAGES if is_run(page) and page != SERVICE], ids=lambda page: page.name
)
def test_page_runs_from_top_to_bottom(page, folder):
    for module in ("matplotlib", "pandas", "msdscore_mini", *(("timm",) if page.name == "extend.md" else ())):
        pytest.importorskip(module)
    run_shell(BEFORE.get(page.name, ""))
    for name in re.findall(r"\.\./(examples/own/\w+\.\w+)", page.read_text(encoding="utf-8")):
        shutil.copy(ROOT / name, ".")  # as the page says: save this as …
    names = {}
    for block in blocks(*PYTHON, *SHELL, page=page):
        if block.reason is not None:
            continue
        if block.kind in PYTHON:
            run_python(block.body, names)
        elif page.name in WALKED:
            run_shell(block.body)


@pytest.mark.parametrize("block", params(block for block in blocks(*PYTHON) if block.reason))
def test_python_that_is_not_run_compiles_and_its_imports_exist(block):
    for node in ast.parse(block.body, block.id).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msdscore"):
            try:
                exec(ast.unparse(node), {})
            except MissingExtraError as error:
                pytest.skip(str(error))


@cache
def make_targets():
    return frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("block", params(blocks(*SHELL)))
def test_commands_parse(block):
    for command, words in lines_of(block.body):
        match words:
            case ["msdscore", *rest] if "…" not in rest:  # an ellipsis stands for omitted options
                parse(rest)
            case ["make", target, *_]:
                assert target in make_targets(), command
            case ["python", "-m", module, *_]:
                assert find_spec(module) is not None, command
            case ["python", path, *_]:
                assert (ROOT / path).exists(), command


@pytest.mark.parametrize("block", params(blocks("json", "jsonl", "toml", "yaml")))
def test_data_is_valid(block):
    match block.kind:
        case "json":
            json.loads(block.body)
        case "jsonl":
            assert all(map(json.loads, block.body.splitlines()))
        case "toml":
            tomllib.loads(block.body)
        case "yaml":
            pytest.importorskip("yaml").compose(block.body)


def test_included_files_exist_and_are_valid():
    includes = [
        (page, match[1])
        for page in PAGES
        for match in re.finditer(r"^```\{(?:literalinclude|include)\} (\S+)", page.read_text("utf-8"), re.M)
    ]
    for page, name in includes:
        text = (page.parent / name).read_text(encoding="utf-8")
        if name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith(".toml"):
            tomllib.loads(text)
    assert includes


@pytest.fixture(scope="module")
def service():
    pytest.importorskip("httpx")
    with served() as address:
        yield address.rstrip("/")


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Create a photograph of 500 kB, which is too long for a command line."""
    monkeypatch.chdir(tmp_path)
    noise = np.random.RandomState(0).randint(0, 255, (512, 512, 3), dtype=np.uint8)
    Image.fromarray(noise).save("dog.jpg", quality=95)
    assert Path("dog.jpg").stat().st_size > 200_000


@pytest.mark.usefixtures("large")
def test_service_examples_run(service, capsys):
    shutil.copy(sample_image("coffee"), "coffee.jpg")
    for block in blocks(*PYTHON, page=SERVICE):
        run_python(ADDRESS.sub(service, block.body), {})
    assert "a cup of coffee" in capsys.readouterr().out
    for block in blocks(*SHELL, page=SERVICE):
        for command, words in lines_of(block.body):
            if words[0] == "curl" and shutil.which("curl"):
                answer = subprocess.run(ADDRESS.sub(service, command), shell=True, capture_output=True, check=True)
                if "-sO" not in words:  # a download prints nothing
                    assert sorted(json.loads(answer.stdout)["items"][0]["ranking"]) == [0, 1]


# The file that a user chose on a page.
CHOSEN_FILE = """import { readFileSync } from "node:fs";
const chosen = new Blob([readFileSync("coffee.jpg")]);
globalThis.document ??= { querySelector: () => ({ files: [chosen] }) };
"""


@pytest.mark.parametrize("block", params(blocks("javascript", "js")))
@pytest.mark.usefixtures("large")
def test_javascript_runs(block, service):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    shutil.copy(sample_image("coffee"), "coffee.jpg")
    Path("example.mjs").write_text(CHOSEN_FILE + ADDRESS.sub(service, block.body), encoding="utf-8")
    subprocess.run(["node", "--check", "example.mjs"], check=True)
    if block.page == SERVICE and block.reason is None:
        answer = subprocess.run(["node", "example.mjs"], capture_output=True, text=True, check=False, env=os.environ)
        assert answer.returncode == 0, answer.stderr
        assert sorted(json.loads(answer.stdout)) == [0, 1]
