"""No circular imports, and no heavy imports in `import msdscore`."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest


def test_no_circular_imports():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("msdscore")
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


def test_all_exported_names_exist():
    import msdscore

    assert sorted(msdscore.__all__) == msdscore.__all__
    assert all(getattr(msdscore, name) is not None for name in msdscore.__all__)
    assert set(msdscore._EXPORTS) | {"__version__"} == set(msdscore.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = msdscore.nothing
