"""Resident training of `mini`: words, texts and images on the device, and bitwise resume."""

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from align_data import draw, source, things
from msdscore.core.embeddings import unit
from msdscore.core.mixture import Mixture, log_density
from msdscore.encoders.base import Embeddings, prepare_all, prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, InputError
from msdscore_lab.align.evaluate import evaluate
from msdscore_lab.align.export import export
from msdscore_lab.align.run.folder import read_run
from msdscore_lab.align.run.parts import TrainOptions, open_towers, tune_towers
from msdscore_lab.align.run.train import Session
from msdscore_lab.pairs import Pairs, TrainingPair, collect, open_pairs
from msdscore_torch.aligned.heads import SideDims
from msdscore_torch.aligned.minilm import CLS, PAD, SEP
from train_mini.batches import open_resident
from train_mini.images import ResidentImages, decode, decoded_images, disturbed, resaved, shrunk
from train_mini.local_losses import densities
from train_mini.losses import Odds, evidence_loss, objects_loss, omission_loss, over_machine_loss
from train_mini.model import MiniAligner, TunedTrunk
from train_mini.phrases import PhraseMaker, build_lexicon, read_classes, similar_images
from train_mini.prepare import is_held_out
from train_mini.recipe import MINI, MiniSample, load_mini
from train_mini.sampling import grouped_order, nearest
from train_mini.terms import TERMS, MiniStep
from train_mini.texts import NO_WORD, FlatTexts, TextPool
from train_mini.trainer import assemble, train
from train_mini.words import ABSENT, PRESENT, UNSURE, caption_words, word_facts, word_labels

CPU = TrainOptions(device="cpu", workers=2)


class Tower:
    """A text tower with words as tokens, without a network."""

    device = torch.device("cpu")


def pool(*owned):
    """Return a pool whose texts are lists of word ids; a token id is the word id plus ten."""
    texts = [text for own in owned for text in own]
    flat = [word for text in texts for word in text]
    arrays = [[word + 10 for word in flat], flat, [len(text) for text in texts], [len(own) for own in owned]]
    return TextPool(FlatTexts(*(np.array(values, dtype=np.int32) for values in arrays)), Tower())


def images(*rows):
    """Return pairs from (captions, objects)."""
    items = tuple(
        TrainingPair(f"{n}.png", tuple(captions), objects=objects) for n, (captions, objects) in enumerate(rows)
    )
    return Pairs(items, np.arange(len(items)), "x")


def test_rows_are_padded_masked_and_truncated():
    found = pool([[5, 6, 7]], [[8]], []).rows(torch.tensor([1, 0, -1]), 2)
    assert found.ids.tolist() == [[CLS, 18, SEP, PAD], [CLS, 15, 16, SEP], [CLS, SEP, PAD, PAD]]
    assert found.words.tolist() == [[NO_WORD, 8, NO_WORD, NO_WORD], [NO_WORD, 5, 6, NO_WORD], [NO_WORD] * 4]
    assert found.mask.sum(dim=1).tolist() == [3, 4, 2]


def test_an_empty_pool_gives_empty_rows():
    empty = pool([], [])
    assert empty.pick(torch.tensor([0, 1]), torch.tensor([0.1, 0.9])).tolist() == [-1, -1]
    assert empty.rows(torch.tensor([-1, -1]), 3).mask.sum(dim=1).tolist() == [2, 2]
    assert pool().rows(torch.zeros(0, dtype=torch.int64), 3).ids.shape == (0, 5)


def test_pick_returns_a_text_of_the_owner_or_none():
    texts = pool([[1], [2]], [], [[3]])
    owners = torch.tensor([0, 0, 1, 2])
    assert texts.pick(owners, torch.tensor([0.0, 0.999, 0.5, 0.7])).tolist() == [0, 1, -1, 2]


def test_labels_use_captions_objects_synonyms_and_similar_words():
    pairs = images((["a red car"], ("dog",)), (["a hound"], None))
    lexicon = build_lexicon(pairs.items, classes=[("dog", "hound", "puppy"), ("car",)])
    number = lexicon.number
    captions = pool([[number["red"], number["car"]]], [[number["hound"]]])
    alike = torch.eye(len(number), dtype=torch.bool)
    alike[number["red"], number["puppy"]] = True
    labels = word_labels(caption_words(captions, 2, len(number)), word_facts(pairs, lexicon), alike)
    seen = [{word: int(row[number[word]]) for word in number} for row in labels]
    # The name of an annotated class is present, its synonyms are unsure, and unrelated words are absent.
    assert seen[0] == {"red": PRESENT, "car": PRESENT, "dog": PRESENT, "hound": UNSURE, "puppy": UNSURE}
    # A caption with "hound" does not mention "dog", but "dog" is not wrong.
    assert seen[1] == {"hound": PRESENT, "dog": UNSURE, "puppy": UNSURE, "red": ABSENT, "car": ABSENT}


def test_classes_are_read_with_synonyms(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("Bicycle, bike\n\ncar,  auto ,\n", encoding="utf-8")
    assert read_classes(path) == (("bicycle", "bike"), ("car", "auto"))
    with pytest.raises(InputError, match="no such file of classes"):
        read_classes(tmp_path / "none.txt")


def test_inserted_objects_are_false():
    rows = [(["a dog on a beach", "the dog is on the beach"], ("dog",)), (["a cat on a sofa"] * 2, ("cat", "couch"))]
    pairs = images(*rows * 3)
    lexicon = build_lexicon(pairs.items, classes=[("dog", "hound"), ("cat",), ("couch", "sofa")])
    maker = PhraseMaker(pairs.items, lexicon, similar_images(pairs.items, lexicon))
    for seed in range(60):
        text = maker.with_addition("a dog on a beach", 0, {"dog", "beach"}, Random(seed))
        added = set(text.rstrip(".").split()) - {
            "a",
            "dog",
            "on",
            "beach",
            "with",
            "and",
            "next",
            "to",
            "near",
            "beside",
        }
        assert added
        assert not added & {"dog", "hound"}


def test_paragraphs_consist_of_captions_of_the_image():
    pairs = images((["a dog", "a beach"], ()), (["a cat"], ()))
    lexicon = build_lexicon(pairs.items)
    maker = PhraseMaker(pairs.items, lexicon, similar_images(pairs.items, lexicon))
    joined = {maker.joined(0, Random(seed)) for seed in range(30)}
    assert any(text in ("A dog. A beach.", "A beach. A dog.") for text in joined)
    assert all("dog" in text and "beach" in text for text in joined)
    assert maker.long(0, Random(3)) == maker.long(0, Random(3))


def test_similar_images_share_rare_words():
    pairs = images((["a red kayak"], None), (["a red car"], None), (["a kayak on a lake"], None), (["a car"], None))
    lexicon = build_lexicon(pairs.items)
    near = similar_images(pairs.items, lexicon, count=1)
    assert near[2].tolist() == [0]
    assert near[3].tolist() == [1]


def test_groups_contain_neighbours_and_each_image_once():
    near = np.array(
        [[(item ^ 1), *[other for other in range(8) if other not in (item, item ^ 1)]] for item in range(8)]
    )
    places = np.arange(8)
    order = grouped_order(near[:, :1], places, group=2, seed=0, epoch=3)
    assert sorted(order.tolist()) == list(range(8))
    assert all(first ^ 1 == second for first, second in order.reshape(-1, 2))
    assert order.tolist() != grouped_order(near[:, :1], places, group=2, seed=0, epoch=4).tolist()


def test_repeated_image_is_never_twice_in_a_group():
    items = np.array([0, 1, 2, 3, 0, 1])
    references = unit(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))
    near = nearest(references[torch.from_numpy(items)], torch.from_numpy(items))
    assert all(items[other] != items[place] for place in range(6) for other in near[place][:4])
    for epoch in range(20):
        order = grouped_order(near, items, group=2, seed=0, epoch=epoch)
        assert sorted(order.tolist()) == list(range(6))
        assert sum(first == second for first, second in items[order].reshape(-1, 2)) <= 1  # except in the remainder


def test_images_are_held_out_by_name_only():
    named = [TrainingPair("x", ("a",), name=f"{number}.jpg") for number in range(600)]
    out = [pair for pair in named if is_held_out(pair, 12)]
    assert 25 < len(out) < 80
    assert not any(is_held_out(pair, 0) for pair in named)
    assert all(is_held_out(replace(pair, captions=("b",)), 12) for pair in out)


def test_views_are_whole_mirrored_or_cropped():
    pixels = torch.arange(2 * 8 * 8 * 3, dtype=torch.uint8).view(2, 8, 8, 3)
    kept = ResidentImages(pixels, torch.tensor([False, True]))
    items = torch.tensor([0, 1] * 20)
    whole = MiniSample(whole=1.0, flip=True)
    found = kept.views(items, whole, size=8, generator=torch.Generator().manual_seed(0))
    straight = pixels.permute(0, 3, 1, 2).float()
    turned = straight.flip(-1)
    fits = [
        (torch.allclose(view, straight[item], atol=1e-3), torch.allclose(view, turned[item], atol=1e-3))
        for view, item in zip(found, items, strict=True)
    ]
    # Image 0 is sometimes mirrored; image 1, whose captions mention left or right, never.
    assert set(fits[::2]) == {(True, False), (False, True)}
    assert set(fits[1::2]) == {(True, False)}
    cropped = kept.views(items, MiniSample(whole=0.0, crop=0.3), size=8, generator=torch.Generator().manual_seed(0))
    assert not any(torch.allclose(view, straight[item], atol=1) for view, item in zip(cropped, items, strict=True))


def photo(side=40, count=1):
    """Return smooth grey images with an edge and some noise."""
    numbers = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side]
    plain = 120 + 60 * np.sin(rows / 5) * np.cos(columns / 7) + 40 * (columns > side // 2)
    grains = [plain + numbers.normal(0, 6, plain.shape) for _ in range(count)]
    return torch.from_numpy(np.stack(grains).clip(0, 255).round()).float().unsqueeze(1).expand(-1, 3, -1, -1)


@pytest.mark.parametrize("quality", [45, 75, 95])
def test_simulated_jpeg_equals_pillow(quality):
    pixels = photo(side=43)  # the last blocks are incomplete
    file = io.BytesIO()
    Image.fromarray(pixels[0, 0].byte().numpy()).save(file, format="JPEG", quality=quality)
    wanted = torch.from_numpy(np.array(Image.open(file))).float()
    found = resaved(pixels, torch.tensor([float(quality)]))[0, 0]
    lost = (wanted - pixels[0, 0]).abs().mean()
    assert (found - wanted).abs().mean() < 0.2 * lost + 0.4  # rounding differs by a quarter on average


def test_shrinking_removes_fine_detail():
    pixels = photo()
    assert torch.allclose(shrunk(pixels, 1.0, smooth=True), pixels, atol=1e-3)
    board = 255.0 * (torch.arange(16).view(-1, 1) + torch.arange(16)).remainder(2).expand(1, 3, -1, -1)
    assert (shrunk(board, 0.5, smooth=True)[..., 2:-2, 2:-2] - 127.5).abs().max() < 1


def test_number_of_distorted_images():
    pixels, spec = photo(side=16, count=20), MiniSample(resaved=0.2, shrunk=0.1, noisy=0.15)

    def changed(spec, seed=0):
        found = disturbed(pixels, spec, generator=torch.Generator().manual_seed(seed))[0]
        return (found != pixels).flatten(1).any(dim=1)

    assert [int(changed(MiniSample(**{name: 0.25})).sum()) for name in ("resaved", "shrunk", "noisy")] == [5, 5, 5]
    assert 4 <= int(changed(spec).sum()) <= 9
    assert torch.equal(changed(spec), changed(spec))
    assert not torch.equal(changed(spec), changed(spec, seed=1))
    assert not changed(MiniSample()).any()
    kept = ResidentImages(pixels.permute(0, 2, 3, 1).byte().contiguous(), torch.zeros(20, dtype=torch.bool))
    views = [
        kept.views(torch.arange(20), replace(each, whole=1.0), size=16, generator=torch.Generator().manual_seed(0))
        for each in (MiniSample(), spec)
    ]
    assert not torch.equal(*views)


def test_over_machine_loss_does_not_reward_style():
    generator = torch.Generator().manual_seed(0)

    def vectors(*shape):
        return unit(torch.randn(*shape, 6, generator=generator, dtype=torch.float64))

    images, people, machine, owner, scale = vectors(4), vectors(4, 2), vectors(3), torch.tensor([0, 1, 3]), 7.0
    wanted = 0.0
    for place, own in enumerate(owner.tolist()):
        wanted += (images @ machine[place] * scale).logsumexp(0) / 2 - scale * images[own] @ machine[place] / 2
        for caption in people[own]:
            gaps = images @ (caption - machine[place])
            wanted += torch.log1p(torch.exp(-scale * (gaps[own] - gaps.mean()))) / 2 + 0.1 * (scale * gaps.mean()) ** 2
    found = over_machine_loss(images, people, machine, owner, torch.tensor(scale, dtype=torch.float64))
    assert found.item() == pytest.approx(wanted.item() / 3)
    nothing = over_machine_loss(images, people, machine[:0], owner[:0], torch.tensor(scale))
    assert nothing.item() == 0.0


def test_unreadable_images_are_reported_and_grey(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not an image")
    Image.new("RGB", (9, 5), "red").save(tmp_path / "good.png")
    items = tuple(TrainingPair(tmp_path / name, ("a",)) for name in ("bad.png", "good.png"))
    found = decode(Pairs(items, np.arange(2), "x"), side=4, workers=2)
    assert list(found.bad) == [0]
    assert "bad.png" in found.bad[0]
    assert found.pixels[0].tolist() == np.full((4, 4, 3), 127).tolist()
    assert found.pixels[1, 0, 0].tolist() == [255, 0, 0]


def test_densities_equal_the_core():
    generator = torch.Generator().manual_seed(0)
    means = unit(torch.randn(3, 2, 5, generator=generator, dtype=torch.float64))
    weights = torch.randn(3, 2, generator=generator, dtype=torch.float64).log_softmax(dim=1)
    points = unit(torch.randn(4, 5, generator=generator, dtype=torch.float64))
    mixtures = Mixture(means, weights, 20.0)
    found = densities(points, mixtures)
    assert torch.allclose(found, log_density(mixtures, points.expand(3, -1, -1)).mT)


def odds(zero=0.0):
    return Odds(torch.tensor(1.0), torch.tensor(zero), torch.zeros(2))


def test_evidence_loss_is_balanced():
    evidence, words = torch.tensor([[2.0, -1.0, 9.0]]), torch.tensor([0])
    labels, weights = torch.tensor([[1, 0, -1]]), torch.ones(1, 3)
    found = evidence_loss(evidence, words, labels, weights, odds=odds(), counts=torch.tensor([3.0, 8.0]))
    wanted = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-1.0))) / 2
    assert float(found) == pytest.approx(wanted, abs=1e-6)
    # A hundred absent words have the same total weight as the present one.
    many = evidence_loss(
        torch.cat([evidence, torch.full((1, 100), -1.0)], dim=1),
        words,
        torch.cat([labels, torch.zeros(1, 100, dtype=torch.int64)], dim=1),
        torch.ones(1, 103),
        odds=odds(),
        counts=torch.tensor([3.0, 8.0]),
    )
    assert float(many) == pytest.approx(wanted, abs=1e-6)


def test_objects_loss_uses_annotated_images_and_weights_hard_classes():
    odds = Odds(torch.tensor(1.0), torch.tensor(0.0), torch.zeros(2))
    evidence = torch.tensor([[3.0, -2.0, 9.0], [1.0, -1.0, 9.0]])
    shown = torch.tensor([[True, False, False], [False, False, False]])
    found = objects_loss(evidence, shown, torch.tensor([True, True, False]), odds)
    absent = np.array([-2.0, 1.0, -1.0])
    weights = 1 / (1 + np.exp(-absent))
    wanted = (np.log1p(np.exp(-3.0)) + (np.log1p(np.exp(absent)) * weights).sum() / weights.sum()) / 2
    assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_omission_loss_is_lower_for_captions_of_the_same_image():
    things = torch.eye(4, dtype=torch.float64)
    # Each image shows two objects and each caption names one; then the second captions are swapped.
    patches = things.view(2, 2, 4)
    images = Embeddings(patches, torch.ones(2, 2, dtype=torch.bool), patches[:, 0], layout=())

    def loss(order):
        points = things[torch.tensor(order)].unsqueeze(1)
        texts = Embeddings(points, torch.ones(4, 1, dtype=torch.bool), points[:, 0], layout=())
        return float(omission_loss(images, texts, torch.tensor(1.0), kappa=5.0, group=2))

    assert loss([0, 1, 2, 3]) < np.log(2) < loss([0, 3, 2, 1])


# --- whole runs, on the real backbones ------------------------------------------------------------------------------

SMALL = [
    "train.steps=4",
    "train.batch=8",
    "train.save_every=2",
    "train.log_every=1",
    "train.keep=9",
    "sample.group=2",
    "sample.stored=32",
    "sample.held_out=0",
    "image.size=64",
    "loss.objects=0.5",
    "loss.omission=0.5",
    "loss.over_machine=0.2",
    "sample.resaved=0.3",
    "train.tune=1",
    "train.tune_lr=1e-3",
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    pytest.importorskip("msdscore_mini")
    folder = tmp_path_factory.mktemp("data")
    lines = []
    for name, colour, shape in things():
        draw(colour, shape).save(folder / name)
        captions = [f"a {colour} {shape}", f"the {shape} is {colour}", f"one {colour} {shape} on the left"]
        lines.append({"image": name, "captions": captions, "machine": [f"a {shape}"], "objects": [shape]})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return source(folder / "rows.jsonl")


def weights(run, step):
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def run(rows, tmp_path_factory):
    """Train four steps, including the last stage of the image network."""
    folder = tmp_path_factory.mktemp("resident")
    report = train(load_mini(changes=SMALL), rows, folder / "run", cache=folder / "cache", options=CPU)
    assert (report.step, report.pairs, report.bad_images) == (4, 8, 0)
    return folder / "run"


@pytest.mark.slow
def test_resume_gives_identical_weights(run, rows, tmp_path):
    """Interrupted after two steps and resumed from the checkpoint, with texts from the cache."""
    again = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(again / "checkpoints" / "step-00000004")
    cache = run.with_name("cache")
    assert len(list(cache.glob("texts-*.npz"))) == 1
    train(load_mini(changes=SMALL), rows, again, cache=cache, options=replace(CPU, resume=True))
    assert same(weights(again, 4), weights(run, 4))
    assert not same(weights(run, 2), weights(run, 4))


def test_decoded_images_are_cached_once_all_can_be_read(tmp_path):
    pair = TrainingPair(tmp_path / "a.png", ("a dog",))
    pairs = collect([pair], source="here")
    assert decoded_images(pairs, side=8, workers=1, cache=tmp_path / "kept").bad
    assert not list((tmp_path / "kept").glob("*.npy"))
    draw("red", "circle").save(tmp_path / "a.png")
    first = decoded_images(pairs, side=8, workers=1, cache=tmp_path / "kept")
    assert not first.bad
    (tmp_path / "a.png").unlink()  # not read again
    again = decoded_images(pairs, side=8, workers=1, cache=tmp_path / "kept")
    assert np.array_equal(again.pixels, first.pixels)
    assert again.pixels.shape == (1, 8, 8, 3)


@pytest.mark.slow
def test_batches_depend_only_on_seed_and_index(run, rows):
    def batches(seed):
        recipe = load_mini(changes=[*SMALL, f"seed={seed}"])
        towers = open_towers(recipe, torch.device("cpu"))
        return open_resident(recipe, open_pairs(rows), towers, workers=1, cache=run.with_name("cache"))

    one = batches(0)
    second = list(one.batches(0, 2))[1]
    (alone,) = one.batches(1, 2)
    (other,) = batches(1).batches(1, 2)
    assert torch.equal(second.pixels, alone.pixels)
    assert torch.equal(second.texts.points, alone.texts.points)
    assert not torch.equal(second.pixels, other.pixels)
    # Every image has a machine caption.
    assert second.machine.owner.tolist() == list(range(8))
    for item, pair in enumerate(open_pairs(rows).items):
        vectors = torch.nn.functional.normalize(one.towers[1].features(list(pair.captions)).pooled, dim=-1)
        assert torch.allclose(one.references[item], vectors.mean(dim=0), atol=1e-5)
    assert len(second.machine.texts) == 8


@pytest.mark.slow
def test_every_term_trains_its_path_and_decreases(rows, tmp_path):
    """Terms of pooled vectors train the global heads only, terms of local vectors the local heads only."""
    recipe = load_mini(changes=[*SMALL, "train.tune=0", "sample.held_out=0"])
    (tmp_path / "run").mkdir()
    inputs = (recipe, open_pairs(rows), tmp_path / "run", CPU)
    session = Session(*inputs, device=torch.device("cpu"), assemble=assemble)
    (batch,) = session.parts.batches(0, 1)
    aligner = session.parts.aligner.eval()  # without dropout
    for path, names in (("global", ("contrastive", "grounded", "bias")), ("local", ("local", "word", "kl", "support"))):
        for name in names:
            aligner.zero_grad()
            before = TERMS[name](MiniStep(session.parts, batch))
            before.backward()
            trained = {key: weights for key, weights in aligner.heads.named_parameters() if weights.grad is not None}
            moved = {key.startswith("global") for key, weights in trained.items() if weights.grad.abs().sum() > 0}
            assert moved == {path == "global"}, name
            with torch.no_grad():
                for weights in trained.values():
                    weights -= 1e-4 * weights.grad
            assert TERMS[name](MiniStep(session.parts, batch)) < before, name


@pytest.mark.slow
def test_tuned_image_network_is_evaluated_and_exported(run, rows, tmp_path):
    found = read_run(run)
    assert {name.split(".")[0] for name in found.trunk} == {"stages", "head"}
    frozen = open_towers(found.recipe, torch.device("cpu"))
    before = frozen[0].network.state_dict()
    assert all(not torch.equal(value, before[name]) for name, value in found.trunk.items())
    encoder = load_encoder(str(export(run, tmp_path / "encoder", dtype="float32")), device="cpu")
    image = draw("red", "circle")
    tower = tune_towers(frozen, found.trunk)[0]
    wanted = found.heads.project("image", tower.features(prepare_all(tower.prepare, [image])))
    assert torch.allclose(prepare_and_encode(encoder, [image]).points, wanted.points, atol=1e-5)
    plain = found.heads.project("image", frozen[0].features(prepare_all(tower.prepare, [image])))
    assert not torch.allclose(plain.points, wanted.points, atol=1e-4)
    assert evaluate(run, rows, device="cpu").step == found.step


def test_tuned_network_initially_equals_the_frozen_one():
    pytest.importorskip("msdscore_mini")
    tower = open_towers(load_mini(changes=["image.size=96"]), torch.device("cpu"))[0]
    pixels = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0)) * 255
    wanted = tower.see(pixels)
    for count in (1, 4, 7):
        found = TunedTrunk(tower.network, count, grid=tower.grid)(pixels)
        assert torch.allclose(found.points, wanted.points, atol=1e-3)
        assert torch.allclose(found.whole.points, wanted.whole.points, atol=1e-3)
        assert found.points.requires_grad


def test_rows_have_machine_captions_objects_and_names(rows):
    first = open_pairs(rows).items[0]
    assert (first.machine, first.objects, first.name) == (("a square",), ("square",), "red-square.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sample.noisy=2", r"noisy .*got 2"),
        ("train.tune=8", r"tune .*got 8"),
        ("loss.evidence=0", r"set loss.evidence"),
        ("loss.reconstruction=1", r"no reconstruction"),
        ("sample.captions=1", r"captions per image, got 1"),
        ("sample.group=3", r"train.batch 8 .*sample.group 3"),
        ("image.kind=timm", r"towers of kind 'mini'"),
    ],
)
def test_invalid_recipes_are_rejected(change, message):
    with pytest.raises(ConfigError, match=message):
        load_mini(changes=[*SMALL, change])


def test_train_command_reads_its_recipe(rows, tmp_path):
    arguments = ["--data", *rows.rows, "-o", str(tmp_path / "run"), "--set", "sample.captions=1"]
    result = subprocess.run(
        [sys.executable, str(MINI.parents[1] / "train.py"), *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "captions per image, got 1" in result.stderr


def test_zeros_of_words_exist_only_with_the_evidence_loss():
    recipe = load_mini(changes=SMALL)
    dims = SideDims(8, 8), SideDims(8, 8, 8)
    assert MiniAligner(recipe, *dims, words=7, classes=3).odds().word_zeros.shape == (7,)
    with pytest.raises(AssertionError):
        MiniAligner(load_mini(changes=[*SMALL, "loss.evidence=0", "loss.objects=0"]), *dims).odds()
