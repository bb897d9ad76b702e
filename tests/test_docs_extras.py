"""Pages mention the extras that their examples need."""

import ast
import re
import tomllib
from functools import cache

import pytest

from test_docs_examples import PAGES, PYTHON, ROOT, SHELL, blocks, lines_of
from test_docs_install import DISTRIBUTIONS

GROUP = re.compile(r"(msdscore-torch|msdscore-lab|msdscore|\.|lab|backbones)\[([\w,]+)\]")
CHECKOUT = {".": "msdscore", "lab": "msdscore-lab", "backbones": "msdscore-torch"}
# Pages without an install line follow the installation page, which installs `mini`.
INSTALLED = {"mini"}
IMPORTED = {
    "evaluate": "evaluate", "matplotlib": "figures", "open_clip": "openclip",
    "pandas": "pandas", "pytorch_lightning": "lightning", "ray": "ray", "scipy": "lab",
    "torchmetrics": "torchmetrics", "transformers": "hf", "trl": "trl", "wandb": "wandb",
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
    "torch": r"\bmsdscore_torch\b",
    "train": r"^msdscore align train\b",
    "ray": r"--engine ray\b|\bs3://",
    "judge": r"-m judge:",
}


@cache
def table(distribution):
    """Return the requirements of each extra of a distribution."""
    text = (ROOT / DISTRIBUTIONS[distribution] / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"].get("optional-dependencies", {})


def contents(distribution, extra):
    """Return an extra and the extras it includes."""
    requirements = " ".join(table(distribution)[extra])
    found = {extra, "torch"} if "msdscore-torch" in requirements else {extra}
    for other, group in GROUP.findall(requirements):
        found.update(*(contents(other, name) for name in group.split(",")))
    return found


def named(page):
    text = page.read_text(encoding="utf-8")
    found = set(INSTALLED)
    if "msdscore-lab" in text or "--editable lab" in text:
        found |= {"lab", "torch"}
    for place, group in GROUP.findall(text):
        found.update(*(contents(CHECKOUT.get(place, place), name) for name in group.split(",")))
    for name in re.findall(r"extras? `(\w+)`", text):
        found |= contents(next(one for one in DISTRIBUTIONS if name in table(one)), name)
    return found


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
                parts = module.split(".")
                name = parts[-1] if parts[1:2] in (["integrations"], ["harnesses"]) else parts[0]
                if name in IMPORTED:
                    yield IMPORTED[name], block.id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_mentions_the_extras_of_its_examples(page):
    missing = {extra: place for extra, place in needed(page) if extra not in named(page)}
    assert not missing, f"{page.name}: name these extras, as in pip install 'msdscore[…]': {missing}"


def test_extras_of_pages_exist():
    for page in PAGES:
        named(page)
