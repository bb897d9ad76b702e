"""Benchmark registry: all rows resolve, unknown names get suggestions, plugins add rows."""

import json
import re
import sys
from pathlib import Path

import pytest

from msdscore.errors import InputError, UnknownNameError
from msdscore.registry import resolve
from msdscore_lab.benchmarks import registry
from msdscore_lab.benchmarks.base import Benchmark


@pytest.mark.parametrize("row", registry.built_in(), ids=lambda row: row.name)
def test_rows_are_complete(row: Benchmark) -> None:
    assert callable(resolve(row.reader, row.name))
    for target in filter(None, (row.figures, row.statistics, row.credits, row.rows)):
        assert callable(resolve(target, row.name))
    assert bool(row.credits) != bool(row.statistics)
    assert row.protocols[0] == "official"
    assert all((row.title, row.licence, row.size, row.source, row.files, row.citation, row.counting))


def test_names_are_unique_and_expected_benchmarks_exist() -> None:
    names = [row.name for row in registry.built_in()]
    assert len(set(names)) == len(names) == 15


@pytest.mark.parametrize("row", registry.built_in(), ids=lambda row: row.name)
def test_missing_folder_is_rejected(row: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/nowhere: no such folder"):
        registry.load(row.name, tmp_path / "nowhere")


OTHER_JSON = {
    "sugarcrepe": ("swap_obj.json", []),
    "coco-cf": ("coco_cf_easy.json", {"rows": []}),
    "caparena": ("caparena_annots_eval.json", {}),
    "flickr8k-expert": ("flickr8k.json", []),
    "composite": ("composite.json", []),
    "pascal50s": ("pascal_50s.json", []),
    "thumb": ("mscoco_THumB-1.0.jsonl", [1]),
}


@pytest.mark.parametrize(("name", "file", "content"), [(name, *case) for name, case in OTHER_JSON.items()])
def test_files_with_other_json_are_rejected(name, file, content, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    options = {"subsets": "swap_obj"} if name == "sugarcrepe" else {}
    with pytest.raises(InputError, match=rf"{re.escape(file)}.*expected .*, got") as caught:
        registry.load(name, tmp_path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("row", registry.built_in(), ids=lambda row: row.name)
def test_empty_folder_error_names_the_missing_files(row: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; get it from \S+") as caught:
        registry.load(row.name, tmp_path)
    assert "\n" not in str(caught.value)


def test_unknown_reader_options_get_suggestions(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'splt'.*'split'"):
        registry.load("rsicd", tmp_path, splt="test")
    with pytest.raises(UnknownNameError, match="sugarcrepe 'foo'"):
        registry.load("sugarcrepe", tmp_path, foo=1)


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownNameError, match="'sugarcrape'.*'sugarcrepe'"):
        registry.benchmark("sugarcrape")


def test_files_without_items_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "sugarcrepe.jsonl").touch()
    with pytest.raises(InputError, match="sugarcrepe: .* contain no items"):
        registry.load("sugarcrepe", tmp_path)


def test_reading_is_lazy() -> None:
    import subprocess

    code = (
        "import sys, msdscore_lab.benchmarks.registry as r; r.benchmark('docent');"
        "heavy = {'torch', 'scipy', 'pandas', 'datasets', 'msdscore_lab.benchmarks.readers.battles'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
