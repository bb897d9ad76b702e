"""The recipe `mini` on its real backbones: towers, overfitting, and export."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from align_data import draw, make_rows, source, things
from msdscore.encoders.base import prepare_all, prepare_and_encode
from msdscore.encoders.checkpoints import locate
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.scorer import Scorer
from msdscore_lab.align.export import export
from msdscore_lab.align.recipe import LossSpec, Recipe, SampleSpec, TrainSpec
from msdscore_lab.align.run.folder import read_run
from msdscore_lab.align.run.parts import TrainOptions, open_towers, tower_dims, tune_towers
from msdscore_lab.align.run.train import train
from msdscore_torch.aligned.heads import AlignedHeads, HeadSpec, HeadsSpec, SideDims
from msdscore_torch.aligned.towers import Features, ImageTowerSpec, TextTowerSpec, plain, read_spec
from msdscore_torch.tensors import read_tensors, widened
from train_mini.recipe import load_mini

pytest.importorskip("msdscore_mini")

CPU = TrainOptions(device="cpu", workers=1)
CAPTIONS = ["A dog runs on the beach.", "the of", "two kayaks, one striped umbrella"]
IMAGES = [draw(colour, shape) for _, colour, shape in things()]
# The recipe, reduced to eight images and a few seconds.
SMALL = [
    "train.steps=12",
    "train.batch=8",
    "train.warmup=0.1",
    "train.average=0.5",
    "train.lr=2e-3",
    "train.log_every=1",
]
SMALL += ["image.size=96", "train.tower_batch=16"]


def frozen_mini(*changes: str) -> Recipe:
    """Return the recipe `mini` without trainer settings: heads on frozen towers."""
    values = plain(load_mini(changes=changes))
    for table, kind in (("loss", LossSpec), ("sample", SampleSpec), ("train", TrainSpec)):
        values[table] = {field.name: values[table][field.name] for field in fields(kind)}
    return read_spec(Recipe, values)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return source(make_rows(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def run(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini") / "run"
    train(frozen_mini(*SMALL), rows, folder, options=CPU)
    return folder


def test_towers_with_shipped_heads_give_the_vectors_of_the_shipped_encoder():
    """The heads are loaded into the towers of the training tool."""
    recipe, shipped = load_mini(), load_encoder("mini", device="cpu", runtime="torch")
    tuned = widened(read_tensors([Path(locate(find_row("mini").source), "trunk-0.safetensors")]))
    towers = tune_towers(open_towers(recipe, torch.device("cpu")), tuned)
    assert tower_dims(*towers) == (SideDims(1752, 1752), SideDims(1536, 768, 384))
    heads = shipped_heads()
    images, seen = (
        prepare_and_encode(shipped, IMAGES[:2]),
        towers[0].features(prepare_all(towers[0].prepare, IMAGES[:2])),
    )
    agree(heads.project("image", seen), images)
    texts, read = shipped.encode_texts(CAPTIONS), towers[1].features(CAPTIONS)
    assert [layout.spans for layout in read.layout] == [layout.spans for layout in texts.layout]
    assert torch.equal(read.mask, texts.mask)
    agree(heads.project("text", read), texts)


def shipped_heads():
    """Return the heads of the first of the two shipped members."""
    heads = AlignedHeads(load_mini().heads, SideDims(1752, 1752), SideDims(1536, 768, 384))
    tensors = widened(read_tensors([Path(locate(find_row("mini").source), "model.safetensors")]))
    own = {name.removeprefix("members.0."): value for name, value in tensors.items() if name.startswith("members.0.")}
    heads.load_state_dict(own)
    return heads.eval().requires_grad_(False)


def agree(member, joined):
    """Compare with the first of two concatenated members, each with half of the squared length."""
    for own, both in ((member.points, joined.points), (member.pooled, joined.pooled)):
        assert torch.allclose(own, both[..., : own.shape[-1]] * 2**0.5, atol=1e-5)


def test_long_captions_are_truncated_in_training_and_windowed_in_scoring():
    long = "a dog runs on the beach . " * 100
    features = open_towers(load_mini(), torch.device("cpu"))[1].features(["a dog", long])
    assert len(features.whole.points) == len(features.pooled) == 2
    assert features.layout[1].cut > 0
    encoder = load_encoder("mini", device="cpu", runtime="torch")
    found = encoder.encode_texts(["a dog", long])
    assert (found.layout[1].windows, found.layout[1].cut) == (2, 0)
    assert torch.allclose(found.pooled[:1], encoder.encode_texts(["a dog"]).pooled, atol=1e-5)


def test_recipe_matches_the_shipped_weights():
    recipe = load_mini()
    config = json.loads(Path(locate(find_row("mini").source), "config.json").read_text(encoding="utf-8"))
    assert [recipe.heads] * 2 == [read_spec(HeadsSpec, own) for own in config["heads"]]
    shipped_heads()  # fails unless names and shapes match
    loss = recipe.loss
    assert (loss.contrastive, loss.relevance, loss.grounded, loss.bias) == (1.0, 1.0, 1.0, 0.5)
    assert (loss.local, loss.word, loss.local_relevance, loss.kl) == (0.5, 1.0, 0.5, 0.2)
    assert (recipe.sample.captions, recipe.train.batch, recipe.train.average) == (2, 512, 0.99)


@pytest.mark.slow
def test_export_gives_the_vectors_of_the_run(run, tmp_path):
    made = load_encoder(str(export(run, tmp_path / "mini")), device="cpu")
    assert (made.bank, made.recommended) == (None, None)
    heads, towers = read_run(run).heads, open_towers(read_run(run).recipe, torch.device("cpu"))
    seen = heads.project("image", towers[0].features(prepare_all(towers[0].prepare, IMAGES)))
    read = heads.project("text", towers[1].features(CAPTIONS))
    # Stored in half precision.
    for ours, theirs in ((prepare_and_encode(made, IMAGES), seen), (made.encode_texts(CAPTIONS), read)):
        assert torch.allclose(ours.pooled, theirs.pooled, atol=5e-3)
        assert torch.allclose(ours.points[ours.mask], theirs.points[theirs.mask], atol=5e-3)
    scores = Scorer(made).rank(IMAGES[0], ["a red square", "the circle is blue"])
    assert scores[0].caption == "a red square"


def test_pool_head_ignores_padding_and_accepts_empty_items():
    spec = HeadsSpec(dim=4, pool="own", global_text=HeadSpec(kind="pool", hidden=12, heads=3), mean_hidden=5)
    heads = AlignedHeads(spec, SideDims(6, 6), SideDims(6, 6, 7)).eval()
    vectors, mask = torch.randn(2, 3, 6), torch.tensor([[True, True, False], [False, False, False]])
    garbage = vectors.masked_fill(~mask.unsqueeze(-1), 1e4)
    mean = torch.randn(2, 7)
    found = [read(heads, points, mask, mean).pooled for points in (vectors, garbage)]
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert all(bool(torch.isfinite(pooled).all()) for pooled in found)
    with pytest.raises(ConfigError, match="mean_hidden"):
        read(heads, vectors, mask, None)


def read(heads, vectors, mask, pooled):
    return heads.project("text", Features(vectors, mask, pooled, whole=Features(vectors, mask)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageTowerSpec(kind="mini", source="lite3"), "Did you mean 'lite2'"),
        (lambda: ImageTowerSpec(kind="mini", source="lite2", levels=(1,)), "always has its three maps"),
        (lambda: TextTowerSpec(kind="mini", source="bert"), "Known: minilm"),
        (lambda: HeadsSpec(image=HeadSpec(kind="pool")), "only as heads.global_text"),
        (lambda: HeadsSpec(mean_hidden=4), "mean_hidden .*got 'linear'"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(MSDScoreError, match=message):
        make()
