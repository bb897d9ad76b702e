"""Pages mention the extras that their examples need."""

import ast
import re
import tomllib
from functools import cache

import pytest

from test_docs_examples import PAGES, PYTHON, ROOT, SHELL, blocks, lines_of

# Pages without an install line follow the installation page, which installs `mini`.
INSTALLED = {"mini"}
IMPORTED = {
    "capevalkit": "capevalkit", "evaluate": "evaluate", "matplotlib": "figures", "open_clip": "openclip",
    "openpyxl": "xlsx", "pandas": "pandas", "pytorch_lightning": "lightning", "ray": "ray", "scipy": "lab",
    "torchmetrics": "torchmetrics", "transformers": "hf", "trl": "trl",
    "wandb": "wandb",
}  # fmt: skip
OPENED = r"(--encoder |-e |-m [\w-]*/?|Scorer\(|load_encoder\(|encoder=|caption_scores\(|MSDReward\()\W?"
NEEDED = {  # patterns of Python lines and commands that need an extra
    "figures": r"\.(png|svg|pdf)\b|--plot\b",
    "pandas": r"\bto_pandas\(",
    "serve": r"^msdscore serve\b",
    "demo": r"^msdscore demo\b",
    "lab": r"^msdscore (align|bench|benchmarks|caption|cococf|compare|rank-captioners|study|table) |msdscore_lab\b",
    "hf": rf"{OPENED}(clip-|siglip|blip|llava|qwen|longclip)",
    "openclip": rf"{OPENED}(open_clip:|biomedclip|remoteclip|mobileclip)",
    "train": r"^msdscore align train\b",
    "ray": r"--engine ray\b|\bs3://",
    "xlsx": r"\.xlsx\b",
    "judge": r"-m judge:",
}


@cache
def contents(extra):
    """Return an extra and the extras it includes."""
    if extra == "lab":  # the distribution msdscore-lab
        return {extra}
    rows = {}
    for file in ("lab/pyproject.toml", "pyproject.toml"):
        rows |= tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    inside = {
        name for row in rows[extra] for group in re.findall(r"msdscore\[([\w,]+)\]", row) for name in group.split(",")
    }
    return {extra}.union(*map(contents, inside))


def named(page):
    text = page.read_text(encoding="utf-8")
    groups = re.findall(r"(?:msdscore|msdscore-lab|\.|lab)\[([\w,]+)\]", text)
    groups += ["lab"] if "msdscore-lab" in text or "--editable lab" in text else []
    names = [name for group in groups for name in group.split(",")] + re.findall(r"extras? `(\w+)`", text)
    return INSTALLED.union(*map(contents, names))


def needed(page):
    """Return the required extras, and other packages by module name, with the block that needs them."""
    for block in blocks(*PYTHON, *SHELL, page=page):
        is_python = block.kind in PYTHON
        commands = (
            [command for command, words in lines_of(block.body) if words[0] == "msdscore"] if not is_python else []
        )
        lines = block.body.splitlines() if is_python else commands
        for extra, pattern in NEEDED.items():
            if any(re.search(pattern, line.partition("#")[0]) for line in lines):
                yield extra, block.id
        for node in ast.walk(ast.parse(block.body)) if is_python else ():
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in modules:
                top, _, rest = module.partition(".")
                if top == "msdscore" and rest.startswith("integrations."):
                    top = rest.split(".")[1]
                if top in IMPORTED:
                    yield IMPORTED[top], block.id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_mentions_the_extras_of_its_examples(page):
    missing = {extra: place for extra, place in needed(page) if extra not in named(page)}
    assert not missing, f"{page.name}: name these extras, as in pip install 'msdscore[…]': {missing}"


def test_extras_of_pages_exist():
    for page in PAGES:
        named(page)
