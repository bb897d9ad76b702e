"""Metric registry, trivial metrics, and scores from files."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from metric_batches import make_batch
from msdscore.errors import ConfigError, InputError, UnknownNameError
from msdscore_lab.metrics.registry import list_metrics, load_metric, load_metrics

CASES = [(0, ("one two three", "one two")), (0, ("a b", "c d"))]


def test_rows_have_needs_and_a_loader():
    names = [row.name for row in list_metrics()]
    assert len(set(names)) == len(names)
    for row in list_metrics():
        module, _, name = row.loader.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], name)), row.name
        assert row.title


def test_the_makefile_requests_metrics_that_exist():
    makefile = Path(__file__).parents[1] / "Makefile"
    (compared,) = re.findall(r"^COMPARED := (.*)$", makefile.read_text(encoding="utf-8"), re.M)
    requested = re.findall(r"-m ([\w-]+)", compared)
    assert len(requested) > 5
    assert set(requested) <= {row.name for row in list_metrics()}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("mds", r"'mds'.*'msd'"),
        ("msd:x", r"'msd' takes no argument"),
        ("file", r"'file' needs an argument"),
        ("msd,kappa=3", r"metric msd 'kappa'"),
        ("random,seed=x", r"seed .*got 'x'"),
        ("judge:m,workers=no", r"workers .*got 'no'"),
        ("judge:m,temperature=-1", r"temperature .*got -1"),
        ("judge:m,backend=cloud", r"backend .*got 'cloud'"),
        ("judge:m,url=ftp://x", r"url .*got 'ftp://x'"),
        ("judge:m,device=cpu", r"device needs backend=local"),
    ],
)
def test_invalid_metrics_are_rejected(asked, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        load_metric(asked)


def test_several_metrics_are_loaded_once_each():
    assert [metric.label for metric in load_metrics(["length", "constant", "length"])] == ["length", "constant"]
    with pytest.raises(ConfigError, match="expected at least one metric"):
        load_metrics([])


def test_trivial_metrics():
    batch = make_batch([None], CASES)
    assert load_metric("length").score(batch).values.tolist() == [[3, 2], [2, 2]]
    assert load_metric("shorter").score(batch).values.tolist() == [[-3, -2], [-2, -2]]
    assert not load_metric("constant").score(batch).values.any()


def test_random_depends_on_seed_and_item_only():
    batch, reverse = make_batch([None], CASES), make_batch([None], CASES[::-1])
    first, other = (load_metric(f"random,seed={seed}").score(batch).values for seed in (0, 1))
    np.testing.assert_array_equal(first, load_metric("random").score(reverse).values)  # ids are positional
    assert (first != other).all()
    many = make_batch([None], CASES * 500)
    values = load_metric("random").score(many).values
    assert abs(values.mean() - 0.5) < 0.03
    assert values.min() >= 0
    assert values.max() < 1


def _file(tmp_path, rows):
    path = tmp_path / "scores.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return f"file:{path}"


def test_scores_of_a_file_are_joined_on_the_id(tmp_path):
    rows = [{"id": "item/1", "scores": [0.5, None]}, {"id": "item/0", "verdict": "b", "wrong_verdict": "tie"}]
    batch = make_batch([None], [*CASES, CASES[0]], control=[False, False, True])
    from dataclasses import replace

    batch = replace(batch, ids=("item/0", "item/1", "item/0"))
    metric = load_metric(_file(tmp_path, rows))
    np.testing.assert_array_equal(metric.score(batch).values, [[0, 1], [0.5, np.nan], [0.5, 0.5]])
    assert metric.higher_is_better
    assert metric.choices.startswith("file:scores.jsonl@")
    assert not load_metric(_file(tmp_path, rows) + ",lower_is_better=true").higher_is_better


def test_invalid_score_files_are_rejected(tmp_path):
    batch = make_batch([None], CASES)
    with pytest.raises(InputError, match="example 'x'; .*'item/0'"):
        load_metric(_file(tmp_path, [{"id": "x", "score": 1}, {"id": "item/0", "scores": [1, 2]}])).score(batch)
    part = make_batch([None], CASES, whole=False)
    rows = [{"id": "x", "score": 1}, {"id": "item/0", "scores": [1, 2]}]
    found = load_metric(_file(tmp_path, rows) + ",partial=true").score(part)
    np.testing.assert_array_equal(found.values, [[1, 2], [np.nan, np.nan]])
    with pytest.raises(InputError, match="item/0: expected 2 .*got 1"):
        load_metric(_file(tmp_path, [{"id": "item/0", "score": 1}])).score(batch)
    with pytest.raises(InputError, match="got 'c'"):
        load_metric(_file(tmp_path, [{"id": "item/0", "verdict": "c"}])).score(batch)
    with pytest.raises(InputError, match="got 'high'"):
        load_metric(_file(tmp_path, [{"id": "item/0", "scores": ["high", 1]}])).score(batch)
    with pytest.raises(InputError, match="1 of 2 items.*use file:"):
        load_metric(_file(tmp_path, [{"id": "item/0", "scores": [1, 2]}])).score(batch)
    with pytest.raises(InputError, match="line 2: expected an object with the field id"):
        load_metric(_file(tmp_path, [{"id": "item/0", "score": 1}, {"image": "x", "caption": "y", "score": 1}]))
    with pytest.raises(InputError, match=r"the id 'item/0' occurs twice"):
        load_metric(_file(tmp_path, [{"id": "item/0", "score": 1}] * 2))
    with pytest.raises(InputError, match=r"nowhere.jsonl: no such file"):
        load_metric("file:nowhere.jsonl")
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(InputError, match="bad.jsonl line 1 is not"):
        load_metric(f"file:{tmp_path / 'bad.jsonl'}")
