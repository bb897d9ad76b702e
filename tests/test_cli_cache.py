"""`--cache`: hits of a second run, and the reported counts."""

import json

import pyarrow.parquet as pq
import pytest

from bench_sets import make_sugarcrepe
from command_line import completed, msdscore, refused
from test_scoring import make_image


@pytest.fixture
def rows(tmp_path):
    lines = []
    for number in range(4):
        make_image(number).save(tmp_path / f"{number}.png")
        lines += [{"image": f"{number}.png", "caption": f"a ball number {number}"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "rows.jsonl"


def test_run_with_another_kappa_reuses_all_vectors(rows, tmp_path):
    plain = msdscore("score", rows, "-e", "toy", "-o", tmp_path / "plain.parquet")
    assert "cache" not in plain.stderr
    command = ("score", rows, "-e", "toy", "--cache", tmp_path / "cache", "--json")
    first = completed(*command, "-o", tmp_path / "first.parquet")
    assert "0 of 4 images (0.0 %) and 0 of 4 texts (0.0 %) were cached" in first.stderr
    assert pq.read_table(tmp_path / "first.parquet").equals(pq.read_table(tmp_path / "plain.parquet"))
    second = msdscore(*command, "-o", tmp_path / "second.parquet", "--set", "kappa=30.5")
    assert (
        f"cache {tmp_path / 'cache'}: 4 of 4 images (100.0 %) and 4 of 4 texts (100.0 %) were cached" in second.stderr
    )
    assert json.loads(second.stdout)["cache"] == {"images": 4, "images_made": 0, "texts": 4, "texts_made": 0}
    again = msdscore("score", rows, "-e", "toy", "-o", tmp_path / "plain.parquet", "--cache", tmp_path / "cache")
    assert "already finished, nothing to do" in again.stderr


def test_invalid_sizes_are_rejected(rows, tmp_path):
    command = ("score", rows, "-e", "toy", "--cache", tmp_path / "cache", "-o", tmp_path / "out.parquet")
    wrong = msdscore(*command, "--cache-size", "much")
    assert (wrong.returncode, wrong.stderr) == (2, "msdscore: expected a size such as 500MB or 64GB, got 'much'\n")
    assert "add --cache DIR" in refused("score", rows, "-e", "toy", "--cache-size", "1GB")


def test_benchmarks_share_the_cache(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    command = ("bench", "sugarcrepe", "--root", tmp_path / "data", "-e", "toy", "-m", "msd", "--samples", 5)
    for change, share in (("kappa=20.5", "(0.0 %)"), ("kappa=30.5", "(100.0 %)")):
        answer = completed(*command, "-o", tmp_path / change, "--cache", tmp_path / "cache", "--set", change)
        assert answer.stderr.count(share) == 2, answer.stderr
