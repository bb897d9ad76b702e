"""The metric in the environment that `pip install msdscore msdscore-mini` makes: no torch, PyArrow or DuckDB needed.

These tests import none of the libraries of extras, so that `make test-light` runs them without.
"""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import msdscore
from msdscore import Scorer, sample_image
from msdscore.errors import MissingExtraError

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
CAT = sample_image("cat")
HEAVY = ("torch", "duckdb", "transformers", "tokenizers", "jaxtyping", "scipy", "pandas", "matplotlib")
SLOW = ("numpy.ma", "PIL.PdfParser", "importlib.metadata", "filelock", "typer", "rich")  # a score needs none of them


@pytest.fixture(scope="module")
def scorer():
    return Scorer(device="cpu")


def test_scores_are_numpy_and_ranks_are_right(scorer):
    scores = scorer.rank(CAT, ["a dog on the beach", "a close up of a cat"])
    assert scores.best == "a close up of a cat"
    assert isinstance(scores.msd, np.ndarray)
    assert scorer.score(CAT, "a close up of a cat").msd == pytest.approx(float(scores.msd.max()), abs=1e-6)


def test_batches_references_and_explanations(scorer):
    batch = scorer.score_batch([CAT, sample_image("coffee")], ["a cat", "a cup of coffee"])
    assert np.isfinite(batch.msd).all()
    assert scorer.score(CAT, "a cat", references=["a cat looks at the camera"]).ref_msd > 0
    why = scorer.explain(CAT, "a cat next to a dog")
    assert why.ranked[0].text == "dog"


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("s.score(c, 'a cat')", SLOW),
        ("s.rank(c, ['a cat', 'a dog']); s.explain(c, 'a cat'); s.score_batch([c], ['a cat'])", HEAVY),
    ],
    ids=["first score", "all calls"],
)
def test_only_needed_libraries_are_imported(code, unwanted):
    code = (
        "import sys; from msdscore import Scorer, sample_image; s, c = Scorer(device='cpu'), sample_image('cat');"
        f"{code}; print([name for name in {unwanted} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_command_line():
    command = [sys.executable, "-m", "msdscore"]
    score = ["score", str(CAT), "a cat", "a dog", "--device", "cpu", "--json"]
    for words, shown in ((score, '"a dog"'), (["score", "--help"], "--encoder"), (["doctor"], "runtime")):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout
        assert "--json" not in words or json.loads(done.stdout)


def test_json_lines_are_scored(tmp_path):
    pytest.importorskip("pyarrow")
    rows = [{"image": str(CAT), "caption": "a cat"}, {"image": "none.jpg", "caption": "a cat"}, {"caption": "a dog"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = [sys.executable, "-m", "msdscore", "score", "rows.jsonl", "-o", "out.jsonl", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stderr
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["error"] is None for row in written] == [True, False, False]
    assert written[0]["verdict"] == "on topic"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.run.json", "rows.jsonl"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "already finished" in again.stderr


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"encoder": "clip-b32"}])
def test_torch_is_named_where_it_is_needed(options):
    with pytest.raises(MissingExtraError, match=r"pip install .*msdscore\[(torch|hf)\]"):
        Scorer(**options)


def test_version_and_names_are_there():
    assert msdscore.__version__
    assert all(getattr(msdscore, name) is not None for name in msdscore.__all__)


def test_a_table_of_scores_names_the_extra_for_files(scorer, monkeypatch):
    scores = scorer.rank(CAT, ["a cat"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[files\]'"):
        scores.to_arrow()
