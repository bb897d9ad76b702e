"""What importing does: no circle between modules, and nothing heavy for a bare `import msdscore`."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest


def test_no_module_imports_itself_through_others():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("msdscore")
    sorter = TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", ["torch", "numpy", "PIL", "pyarrow", "jinja2", "matplotlib"])
def test_a_bare_import_loads_nothing_heavy(module):
    code = f"import sys, msdscore; dir(msdscore); sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_is_there():
    import msdscore

    for name in msdscore.__all__:
        assert getattr(msdscore, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = msdscore.nothing
