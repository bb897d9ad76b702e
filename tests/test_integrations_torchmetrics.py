"""MSDScore in torchmetrics: inputs of CLIPScore, one encoder pass, per-pair states, two processes."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from counting import CountingEncoder
from msdscore import ConfigError, Scorer, ScorerSpec, UnknownNameError

pytest.importorskip("torchmetrics", reason="torchmetrics is not installed (extra torchmetrics)")
from torchmetrics import MetricCollection

from msdscore_torch.integrations.torchmetrics import MSDScore, UnscoredWarning

COLOURS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255)}


def image(colour: str, size: int = 64) -> torch.Tensor:
    return torch.tensor(COLOURS[colour], dtype=torch.uint8).reshape(3, 1, 1).repeat(1, size, size)


CAPTIONS = ["a red square", "a blue square", "a green and a red square"]


def batch() -> torch.Tensor:
    return torch.stack([image(colour) for colour in COLOURS])


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    images = [Image.new("RGB", (64, 64), colour) for colour in COLOURS.values()]
    return Scorer("toy").score_batch(images, CAPTIONS).msd


def test_pairs_without_a_number_are_excluded_from_its_mean():
    people = [["a red box"], None, ["a green and a red thing", "a lawn"]]
    metric = MSDScore("toy", by="ref_msd", return_rows=True)
    metric.update(batch(), CAPTIONS, people)
    with pytest.warns(UnscoredWarning, match="1 of 3 pairs have no ref_msd"):
        rows = metric.compute()
    assert float(rows["mean"]) == pytest.approx(np.nanmean(rows["ref_msd"].numpy()), rel=1e-5)
    metric.reset()
    metric.update(image("red"), "")
    with pytest.warns(UnscoredWarning, match="1 of 1 pairs .*first: caption is empty"):
        assert metric.compute()["mean"].isnan()


def test_mean_and_rows_equal_the_scorer(expected):
    metric = MSDScore("toy", return_rows=True)
    metric.update(batch(), CAPTIONS)
    found = metric.compute()
    np.testing.assert_allclose(found["msd"], expected, rtol=1e-6)
    assert found["mean"] == pytest.approx(expected.mean(), rel=1e-6)
    names = {"similarity", "coverage", "support", "match", "information", "negation", "penalty", "invented"}
    assert names <= found.keys()
    assert metric.signature == Scorer("toy").signature


@pytest.mark.parametrize(
    "given",
    [
        lambda: (batch(), CAPTIONS),
        lambda: (CAPTIONS, batch()),
        lambda: (list(batch()), CAPTIONS),
        lambda: (batch().long(), CAPTIONS),
        lambda: (batch().float() / 255, CAPTIONS),
        lambda: ([Image.new("RGB", (64, 64), colour) for colour in COLOURS.values()], tuple(CAPTIONS)),
        lambda: (batch().permute(0, 2, 3, 1).numpy(), np.array(CAPTIONS)),
    ],
    ids=["uint8", "swapped", "list", "int64", "float", "Pillow", "NumPy"],
)
def test_accepts_the_inputs_of_clipscore(given, expected):
    assert MSDScore("toy")(*given()) == pytest.approx(expected.mean(), rel=1e-6)


def test_the_encoder_runs_once_in_forward():
    encoder = CountingEncoder()
    metric = MSDScore(Scorer(encoder))
    metric(batch(), CAPTIONS)
    metric.update(batch(), CAPTIONS)
    metric.compute()
    assert sum(encoder.images) == 6


def test_values_accumulate_over_batches_until_reset(expected):
    metric = MSDScore("toy")
    for number in range(3):
        metric(batch()[number : number + 1], CAPTIONS[number : number + 1])
    assert metric.compute() == pytest.approx(expected.mean(), rel=1e-6)
    metric.reset()
    metric.update(image("red"), CAPTIONS[0])
    assert metric.compute() == pytest.approx(expected[0], rel=1e-6)


def test_long_captions_are_not_truncated():
    metric = MSDScore("toy", return_rows=True)
    long = "a square " * 200
    metric.update([image("red")] * 2, [long + "of red", long + "of blue"])
    red, blue = metric.compute()["support"]
    assert red < blue  # the last word of 402 is read


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a dog", "a cat", "got captions twice"),
        (torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), "got images twice"),
        (batch(), ["one"], "got 3 images and 1 captions"),
        (batch(), [None, "one", "two"], "captions as text, got NoneType"),
    ],
)
def test_invalid_inputs_are_rejected(source, target, message):
    with pytest.raises(ConfigError, match=message):
        MSDScore("toy").update(source, target)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_empty_update_has_no_effect(expected):
    metric = MSDScore("toy", return_rows=True)
    assert metric.compute()["mean"].isnan()
    metric.reset()
    metric.update([], [])
    metric.update(batch(), CAPTIONS)
    metric.update(batch()[:0], [])
    np.testing.assert_allclose(metric.compute()["msd"], expected, rtol=1e-6)


def test_invalid_settings_are_rejected():
    with pytest.raises(UnknownNameError, match="number to average 'coverage'"):
        MSDScore("toy", by="coverage")
    with pytest.raises(ConfigError, match="a Scorer, .*got int"):
        MSDScore(7)


def test_copies_are_small_and_share_the_scorer(expected):
    metric = MSDScore(ScorerSpec(encoder="toy"))
    metric.update(batch(), CAPTIONS)
    stored = pickle.dumps(metric)
    assert len(stored) < 20_000
    for other in (pickle.loads(stored), copy.deepcopy(metric), metric.clone()):
        assert other.scorer is metric.scorer
        assert other.compute() == pytest.approx(expected.mean(), rel=1e-6)


def test_metric_collection():
    both = MetricCollection({"msd": MSDScore("toy"), "cosine": MSDScore("toy", by="similarity")})
    found = both(batch(), CAPTIONS)
    assert set(found) == {"msd", "cosine"}
    assert found["msd"] != found["cosine"]


def test_plot_draws_means():
    pytest.importorskip("matplotlib")
    metric = MSDScore("toy", return_rows=True)
    metric.update(batch(), CAPTIONS)
    figure, axes = metric.plot()
    assert axes.lines
    import matplotlib.pyplot as plt

    plt.close(figure)


# The script of one of two processes; the test process is the other one, because importing torchmetrics is slow.
RANK = """
import torch, warnings
warnings.simplefilter("ignore")  # torchmetrics warns of compute before update on the rank without data
from msdscore_torch.integrations.torchmetrics import MSDScore
images, captions = torch.load(f"{place}/pairs.pt", weights_only=True)
torch.distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
for case, own in {"uneven": [[0, 1], [2]], "empty": [[0, 1, 2], []]}.items():
    metric = MSDScore("toy", return_rows=True)
    for number in own[rank]:
        metric.update(images[number : number + 1], captions[number : number + 1])
    torch.save(metric.compute(), f"{place}/{case}{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_gather_all_pairs(tmp_path, expected):
    torch.save((batch(), CAPTIONS), tmp_path / "pairs.pt")
    with subprocess.Popen([sys.executable, "-c", f"rank, place = 1, {str(tmp_path)!r}\n{RANK}"]) as other:
        exec(RANK, {"rank": 0, "place": str(tmp_path)})
        assert other.wait(timeout=120) == 0
    for name in ("uneven0", "uneven1", "empty0", "empty1"):
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        np.testing.assert_allclose(found["msd"], expected, rtol=1e-6)
        assert found["mean"] == pytest.approx(expected.mean(), rel=1e-6)
