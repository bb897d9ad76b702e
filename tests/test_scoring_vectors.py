"""Vectors of an encoder that are not finite, zero, masked or in double precision."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import invoke
from counting import CountingEncoder
from msdscore import ConfigError, RowError, Scorer, WeightsError, build_bank, load_bank, load_encoder, save_bank
from msdscore.forms.registry import find_form

NAN, GPU = float("nan"), torch.device("cuda")
COLOURS = ("red", "green", "blue")


class Own(CountingEncoder):
    """The toy encoder with changed vectors of some items; items are images by colour, or texts."""

    def __init__(self, images=None, texts=None, device="cpu"):
        super().__init__()
        self.change_images, self.change_texts, self.device = images, texts, torch.device(device)

    def encode_images(self, images):
        vectors = super().encode_images(images)
        return (
            self.change_images(vectors, [image.pixels.reshape(3, -1)[:, 0].tolist() for image in images])
            if self.change_images
            else vectors
        )

    def encode_texts(self, texts):
        vectors = super().encode_texts(texts)
        return self.change_texts(vectors, texts) if self.change_texts else vectors


def changed(part, value, wanted):
    """Set a part of the vectors of the wanted items to a value."""

    def change(vectors, items):
        tensor = getattr(vectors, part).copy()
        for row, item in enumerate(items):
            if item == wanted:
                tensor[row] = value
        return replace(vectors, **{part: tensor})

    return change


def squares():
    return [Image.new("RGB", (64, 64), colour) for colour in COLOURS]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("part", ["points", "pooled"])
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_vectors_that_are_not_finite_fail_their_rows_only(device, part, value):
    expected = Scorer("toy").score_batch(squares(), [f"a {colour} square" for colour in COLOURS])
    image, text = (
        Own(changed(part, value, [255, 0, 0]), device=device),
        Own(None, changed(part, value, "a red square"), device),
    )
    for encoder in (image, text):
        scores = Scorer(encoder).score_batch(squares(), [f"a {colour} square" for colour in COLOURS])
        assert [score.error is None for score in scores] == [False, True, True]
        assert "not finite" in scores[0].error
        assert scores.msd[1:].tolist() == pytest.approx(expected.msd[1:].tolist(), abs=1e-6)
    with pytest.raises(RowError, match="not finite"):
        Scorer(text).rank(squares()[0], ["a red square", "a blue square"])
    assert Scorer(text).rank(squares()[0], ["a red square", "a blue square"], errors="row").best == "a blue square"


def test_run_with_vectors_that_are_not_finite_has_errors_and_exit_code_3(tmp_path, monkeypatch):
    module = "import test_scoring_vectors as own\n\n\ndef broken(**options):\n    return own.Own(None, own.changed('points', own.NAN, 'a red square'))\n"
    (tmp_path / "broken_encoder.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = []
    for colour, image in zip(COLOURS, squares(), strict=True):
        image.save(tmp_path / f"{colour}.png")
        lines.append(json.dumps({"image": f"{colour}.png", "caption": f"a {colour} square"}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "scores.jsonl"
    done = invoke("score", str(tmp_path / "rows.jsonl"), "-e", "broken_encoder:broken", "-o", str(output))
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert done.exit_code == 3
    assert ["not finite" in (row.get("error") or "") for row in rows] == [True, False, False]


def test_bank_with_nan_is_rejected(tmp_path):
    toy = load_encoder("toy")
    form = find_form("short").changed(calibration="background")
    with pytest.raises(ConfigError, match="not finite"):
        build_bank(Own(changed("points", NAN, [255, 0, 0])), form, squares())
    good = build_bank(toy, form, squares())
    means = good.bank.images.means.copy()
    means[0] = NAN
    save_bank(replace(good, bank=replace(good.bank, images=replace(good.bank.images, means=means))), tmp_path / "bank")
    with pytest.raises(WeightsError, match="NaN"):
        load_bank(tmp_path / "bank")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_zero_points_are_masked(device):
    def zero(vectors, items):
        points = vectors.points.copy()
        points[:, :18] = 0.0
        return replace(vectors, points=points)

    def masked(vectors, items):
        mask = vectors.mask.copy()
        mask[:, :18] = False
        return replace(vectors, mask=mask)

    first, second = (
        Scorer(Own(change, device=device)).score(squares()[0], "a red square") for change in (zero, masked)
    )
    assert first.msd == pytest.approx(second.msd, abs=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("part", "value"), [("points", 0.0), ("mask", False)])
def test_image_without_points_is_an_error(device, part, value):
    scorer = Scorer(Own(changed(part, value, [255, 0, 0]), device=device))
    scores = scorer.score_batch(squares(), [f"a {colour} square" for colour in COLOURS])
    assert [score.error is None for score in scores] == [False, True, True]


def test_vectors_in_double_precision_are_rounded():
    def double(vectors, items):
        return replace(vectors, points=vectors.points.astype(np.float64), pooled=vectors.pooled.astype(np.float64))

    found, expected = (
        Scorer(encoder).score(squares()[0], "a red square", references=["a red box"]).to_dict()
        for encoder in (Own(double, double), Own())
    )
    assert found == expected
