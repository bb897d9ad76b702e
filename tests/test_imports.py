"""No circular imports, and no heavy imports in `import msdscore`."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from msdscore.errors import install_line


def test_no_circular_imports():
    grimp = pytest.importorskip("grimp")
    # Types alone may refer to each other: a figure draws an explanation, which can save itself as a figure.
    graph = grimp.build_graph("msdscore", "msdscore_serve", exclude_type_checking_imports=True)
    sorter = TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_import_does_not_load_heavy_modules():
    heavy = {"torch", "transformers", "numpy", "PIL", "pyarrow", "jinja2", "matplotlib"}
    code = f"import sys, msdscore; dir(msdscore); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pyarrow", "duckdb", "jaxtyping", "tokenizers", "transformers", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

sys.meta_path.insert(0, Missing())
import importlib.util
importlib.util.find_spec = lambda name, package=None, find=importlib.util.find_spec: None if name == "torch" else find(name, package)
"""


def without(code, **options):
    """Run code in a process in which heavy libraries cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("score", "rows.jsonl", "-o", "out.jsonl"), "files"), (("select", "out.parquet", "-o", "x.jsonl"), "select")],
)
def test_missing_extra_is_one_line_with_the_command(arguments, extra, tmp_path):
    from msdscore import sample_image

    (tmp_path / "rows.jsonl").write_text(f'{{"image": "{sample_image("cat")}", "caption": "a cat"}}\n')
    (tmp_path / "out.parquet").write_bytes(b"")
    done = without(f"from msdscore.__main__ import main; sys.argv = {['msdscore', *arguments]}; main()", cwd=tmp_path)
    assert done.returncode != 0
    assert f"install it with: {install_line(f'msdscore[{extra}]')}\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.parts"))


def test_all_exported_names_exist():
    import msdscore

    assert sorted(msdscore.__all__) == msdscore.__all__
    assert all(getattr(msdscore, name) is not None for name in msdscore.__all__)
    assert set(msdscore._EXPORTS) | {"__version__"} == set(msdscore.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = msdscore.nothing


WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = ("torch", "pyarrow", "duckdb", "jaxtyping", "tokenizers", "transformers", "matplotlib")
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in hidden else find(name, *rest)
from PIL import Image
from msdscore import Scorer

scorer, image = Scorer({encoder!r}), Image.new("RGB", (96, 64), "red")
scorer.score(image, "a red square")
scorer.score(image, "a red square", references=["a red field", "one square"])
scorer.rank(image, ["a red square", "no blue square"])
list(scorer.stream([(image, "a red square"), (image, ["a dog", "red"])]))
scorer.score_batch([image, image], ["a red square", "a dog"])
scorer.explain(image, "a red square on the left")
from msdscore.testing import check_encoder
check_encoder(scorer.encoder)
print(sorted(set(hidden) & set(sys.modules)))
"""


@pytest.mark.parametrize("encoder", ["toy", "mini"])
def test_scores_and_explanations_need_no_heavy_library(encoder, tmp_path):
    code = WITHOUT_TORCH.format(encoder=encoder)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


PROGRAMS = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    print(path.stem, flush=True)
    importlib.import_module(path.stem)
"""


@pytest.mark.slow
def test_programs_of_perf_find_what_they_import():
    for module in ("torchmetrics", "timm", "msdscore_lab"):
        pytest.importorskip(module)
    command = [sys.executable, "-c", PROGRAMS, str(Path(__file__).parents[1] / "perf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (done.stdout.split()[-1:], done.stderr[-2000:])
