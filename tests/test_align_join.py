"""Joined encoders: mean similarities, shared stages, and int8 weights."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from align_data import draw, make_rows, recipe, source, things
from join_mini import join, main
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, RunError, WeightsError
from msdscore_lab.align.export import export
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train
from msdscore_torch.aligned.heads import join_states, split_features
from msdscore_torch.aligned.lite2 import Lite2, branch_maps, share_stages
from msdscore_torch.aligned.towers import ImageTowerSpec
from msdscore_torch.tensors import Features, packed, widened

CAPTIONS = ["a red square", "two green circles on a table"]
IMAGES = [draw(colour, shape) for _, colour, shape in things()[:3]]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Train two tiny encoders of one recipe with two seeds."""
    folder = tmp_path_factory.mktemp("members")
    rows = source(make_rows(folder / "data"))
    for seed in (0, 1):
        made = replace(recipe(train={"steps": 2}), seed=seed)
        train(made, rows, folder / f"run{seed}", options=TrainOptions(device="cpu", workers=1))
        export(folder / f"run{seed}", folder / f"encoder{seed}", dtype="float32")
    return [folder / f"encoder{seed}" for seed in (0, 1)]


def _similarities(encoder):
    images, texts = prepare_and_encode(encoder, IMAGES), encoder.encode_texts(CAPTIONS)
    local = torch.einsum("ind,jmd->injm", images.points, texts.points)
    return local, images.pooled @ texts.pooled.T


def test_joined_encoder_averages_the_similarities_of_its_members(members, tmp_path):
    made = load_encoder(str(join(members, tmp_path / "joined", dtype="float32")), device="cpu")
    first, second = (_similarities(load_encoder(str(folder), device="cpu")) for folder in members)
    assert not torch.allclose(first[0], second[0], atol=1e-2)
    for found, one, other in zip(_similarities(made), first, second, strict=True):
        assert torch.allclose(found, (one + other) / 2, atol=1e-5)


def test_int8_weights_change_similarities_little(members, tmp_path):
    exact = _similarities(load_encoder(str(join(members, tmp_path / "wide", dtype="float32")), device="cpu"))
    small = _similarities(load_encoder(str(join(members, tmp_path / "small")), device="cpu"))
    for one, other in zip(exact, small, strict=True):
        assert 0 < (one - other).abs().max() < 0.02


def test_incompatible_encoders_are_rejected(members, tmp_path):
    with pytest.raises(ConfigError, match="at least 2"):
        join(members[:1], tmp_path / "one")
    with pytest.raises(ConfigError, match="exported encoder"):
        join([members[0], tmp_path / "nothing"], tmp_path / "two")
    joined = join(members, tmp_path / "joined")
    with pytest.raises(ConfigError, match="is already a joined encoder"):
        join([members[0], joined], tmp_path / "three")
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((members[1] / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(
        json.dumps(config | {"text_dims": {"local": 1, "whole": 0, "pooled": 0}}), encoding="utf-8"
    )
    with pytest.raises(ConfigError, match="differs from .* in text_dims"):
        join([members[0], other], tmp_path / "four")
    with pytest.raises(ConfigError, match="int8, float16, float32"):
        join(members, tmp_path / "five", dtype="int4")
    with pytest.raises(ConfigError, match="is one of the encoders to join"):
        join(members, members[0], overwrite=True)


def test_files_of_an_earlier_export_are_removed(members, tmp_path):
    out = join(members, tmp_path / "out")
    for name in ("bank.safetensors", "trunk-7.safetensors"):  # of other weights
        (out / name).write_bytes(b"old")
    with pytest.raises(RunError):
        join(members, out)
    assert (out / "bank.safetensors").read_bytes() == b"old"  # a rejected export removes nothing
    join(members, out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors", "SHA256SUMS", "CRC32SUMS"}
    assert load_encoder(str(out), device="cpu").bank is None


def test_backbone_weights_are_not_treated_as_tuned_stages(members, tmp_path):
    """For a timm tower they are the backbone's file, which all members share."""
    folders = []
    for number, member in enumerate(members):
        folders.append(tmp_path / str(number))
        shutil.copytree(member, folders[-1], ignore=shutil.ignore_patterns("SHA256SUMS"))
        config = json.loads((member / "config.json").read_text(encoding="utf-8"))
        config["image"] |= {"kind": "timm", "weights": "backbone.safetensors"}
        (folders[-1] / "config.json").write_text(json.dumps(config), encoding="utf-8")
    made = json.loads((join(folders, tmp_path / "out") / "config.json").read_text(encoding="utf-8"))
    assert made["image"]["weights"] == "backbone.safetensors"
    assert not made["image"].get("branches")


def test_join_command_writes_an_encoder(members, tmp_path, capsys):
    main([*map(str, members), "-o", str(tmp_path / "out")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    assert load_encoder(str(tmp_path / "out"), device="cpu").signature.startswith("out@")


def test_joined_vectors_have_the_mean_dot_product():
    generator = torch.Generator().manual_seed(0)
    sides = [[torch.randn(2, 3, dim, generator=generator) for dim in (4, 5)] for _ in range(2)]
    pooled = [[torch.nn.functional.normalize(part[:, 0], dim=-1) for part in side] for side in sides]
    joined = [
        join_states([Features(part, torch.ones(2, 3) > 0, mean) for part, mean in zip(side, means, strict=True)])
        for side, means in zip(sides, pooled, strict=True)
    ]
    unit = torch.nn.functional.normalize
    points = [unit(state.points, dim=-1) for state in joined]
    expected = sum(unit(one, dim=-1) @ unit(other, dim=-1).mT for one, other in zip(*sides, strict=True)) / 2
    assert torch.allclose(points[0] @ points[1].mT, expected, atol=1e-6)
    assert torch.allclose(joined[0].pooled.norm(dim=-1), torch.ones(2), atol=1e-6)


def test_branch_features_are_split_in_order():
    vectors, mask = torch.arange(12.0).view(1, 2, 6), torch.ones(1, 2, dtype=torch.bool)
    first, second = split_features(Features(vectors, mask), 2)
    assert first.points[0, 0].tolist() == [0, 1, 2]
    assert second.points[0, 1].tolist() == [9, 10, 11]
    assert first.whole is None


def _networks(changed):
    """Return random networks that differ from the first in the given parts."""
    torch.manual_seed(0)
    first = Lite2().eval()
    for parameter in first.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    found = [first]
    for name in changed:
        other = deepcopy(first)
        with torch.no_grad():
            dict(other.named_parameters())[name].add_(0.05)
        found.append(other)
    return found


@pytest.mark.parametrize(
    ("changed", "shared"),
    [(["stages.3.0.layers.0.weight"], 3), (["stages.6.0.layers.0.weight", "head.bias"], 5), ([], 5)],
)
def test_shared_stages_are_detected_and_do_not_change_features(changed, shared):
    networks = _networks(changed)
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        apart = [part for network in networks for part in network(pixels)]
        assert share_stages(networks) == shared
        together = branch_maps(networks, pixels, shared=shared)
    assert all(torch.equal(one, other) for one, other in zip(apart, together, strict=True))
    if changed:
        assert networks[1].stages[0] is networks[0].stages[0]


def test_different_stem_is_rejected():
    with pytest.raises(WeightsError, match="one stem"):
        share_stages(_networks(["stem.weight"]))


def test_branches_need_a_mini_image_tower():
    with pytest.raises(ConfigError, match="tower of kind 'mini'"):
        ImageTowerSpec(kind="timm", source="resnet18", branches=("a.safetensors", "b.safetensors"))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 7), st.floats(1e-6, 1e6))
def test_int8_error_is_at_most_half_a_step(rows, columns, scale):
    tensor = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * 10 + columns)) * scale
    found = widened(packed({"weight": tensor}))["weight"]
    steps = tensor.abs().amax(dim=1, keepdim=True) / 127
    assert ((found - tensor).abs() <= steps * 0.5001).all()


def test_zero_rows_stay_zero_in_int8():
    tensors = {"weight": torch.zeros(2, 3), "bias": torch.ones(2), "norm.scale": torch.full((3,), 2.0)}
    found = widened(packed(tensors))
    assert set(found) == set(tensors)
    assert found["weight"].tolist() == [[0.0] * 3] * 2
    assert found["norm.scale"].tolist() == [2.0] * 3
