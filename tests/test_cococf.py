"""COCO-CF: changes are single, grammatical, false by the annotations, deterministic and balanced."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

import tiny_lm
from command_line import invoke
from msdscore.errors import ConfigError, InputError, UnknownNameError
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.cococf.build import Balance, BuildSettings, build, requested
from msdscore_lab.cococf.changes import MAKERS, SPLITS, Counterfactual, Subject
from msdscore_lab.cococf.files import read_cococf
from msdscore_lab.cococf.knowledge import Knowledge, collocation_test, image_facts, learn
from msdscore_lab.cococf.quality import judge_quality, read_likelihoods, section
from msdscore_lab.cococf.sites import object_sites, read_caption
from msdscore_lab.cococf.sources import AnnotatedImage, SourcedCaption, image_number, read_objects, read_sources
from msdscore_lab.cococf.vocabulary import vocabulary
from msdscore_lab.edits import ARTICLES, article
from real_data import FOLDER, needs

NOTHING = Knowledge({}, {})
THINGS = ("dog", "cat", "horse", "banana", "apple", "pizza", "laptop", "keyboard", "car", "bus", "backpack")
PLACES = ("couch", "bed", "bench", "chair")
COLOURS = ("red", "blue", "green", "white", "black", "brown")


def image(*texts: str, objects: tuple[str, ...] = (), name: str = "000000000007.jpg") -> AnnotatedImage:
    return AnnotatedImage(name, tuple(SourcedCaption(text, "people") for text in texts), frozenset(objects))


def changes(caption: str, subset: str, split: str, *, others: tuple[str, ...] = (), objects: tuple[str, ...] = ()):
    one = image(caption, *others, objects=objects)
    return list(MAKERS[subset](Subject(read_caption(caption), image_facts(one, NOTHING), NOTHING), split))


def synthetic_images(count: int, seed: int = 0) -> list[AnnotatedImage]:
    """Return images of an object on furniture, with a bottle or a cup that the captions do not mention."""
    chance, found = Random(seed), []
    for number in range(count):
        thing, place, one, two = chance.choice(THINGS), chance.choice(PLACES), *chance.sample(COLOURS, 2)
        extra = chance.choice(("bottle", "cup", "book", "clock", "vase", "car", "dog", "apple"))
        texts = (
            f"a {one} {thing} sitting on a {two} {place}.",
            f"A {thing} is lying on top of the {place}.",
            f"the {one} {thing} on a {place}",
        )
        found.append(image(*texts, objects=(thing, place, extra), name=f"{number:012d}.jpg"))
    return found


def test_replaced_object_has_the_same_number_and_the_right_article() -> None:
    found = changes("A dog on an orange couch.", "replace_obj", "hard", objects=("dog", "couch"))
    texts = {one.negative for one in found}
    assert "A cat on an orange couch." in texts
    assert "An elephant on an orange couch." in texts
    assert not any("dogs" in text or "A elephant" in text for text in texts)
    elephant = next(one for one in found if one.inserted == ("elephant",))
    assert elephant.negative[slice(*elephant.negative_spans[0])] == "An elephant"
    assert elephant.positive[slice(*elephant.positive_spans[0])] == "A dog"


def test_easy_objects_are_unrelated_to_shown_objects_and_not_mentioned() -> None:
    found = changes(
        "a dog next to a bowl", "replace_obj", "easy", others=("a puppy with a bike",), objects=("dog", "bowl")
    )
    families = {vocabulary().objects[name].family for name in ("dog", "bowl", "bicycle", "person")}
    inserted = {word for one in found for word in one.inserted}
    assert inserted, "some objects are absent"
    by_form = {form: one for one in vocabulary().objects.values() for form in (one.singular, one.plural)}
    assert not {by_form[word].family for word in inserted if word in by_form} & (families - {"person"})
    assert "motorcycle" not in inserted, "a bike may be one"


def test_annotated_or_mentioned_objects_are_never_inserted() -> None:
    for split in SPLITS:
        words = [
            one.inserted
            for one in changes(
                "a cat on a couch",
                "replace_obj",
                split,
                others=("the sofa has a puppy",),
                objects=("cat", "couch", "bird"),
            )
        ]
        assert words
        assert not {("dog",), ("bird",)} & set(words)


def test_man_is_replaced_by_woman_only_if_no_caption_mentions_one() -> None:
    assert [one.negative for one in changes("a man in a hat", "replace_obj", "hard", objects=("person",))] == [
        "a woman in a hat"
    ]
    assert changes("a man in a hat", "replace_obj", "hard", others=("a woman waits",), objects=("person",)) == []


def test_parts_of_compounds_are_not_objects() -> None:
    for text in ("a hot dog stand", "a teddy bear", "the bus stop", "a train station", "a toy car on a rug"):
        assert [
            site.text
            for site in object_sites(read_caption(text))
            if site.text in ("dog", "bear", "bus", "train", "car")
        ] == []


def test_attributes_skip_synonyms_and_mentioned_words() -> None:
    words = {
        one.inserted[0]
        for split in SPLITS
        for one in changes("a gray car", "replace_att", split, others=("a red car",))
    }
    assert "white" in words
    assert not words & {"red", "silver", "grey", "gray"}
    assert changes("a young building", "replace_att", "easy") == []
    assert {one.negative for one in changes("two dogs run", "replace_att", "easy", others=("a pair of dogs, four cats",))} == {
        "three dogs run", "five dogs run", "six dogs run",
    }  # fmt: skip


def test_changed_relations_and_actions() -> None:
    assert [one.negative for one in changes("a cat on a table", "replace_rel", "easy")] == ["a cat under a table"]
    assert [one.negative for one in changes("a man on a sunny day", "replace_rel", "easy")] == []
    assert "a man behind a car" in [one.negative for one in changes("a man in front of a car", "replace_rel", "hard")]
    done = {one.inserted[0] for one in changes("a woman riding a horse", "replace_rel", "easy")}
    assert "carrying" in done
    assert "driving" not in done
    assert changes("a vase sitting on a table", "replace_rel", "hard")[0].removed == ("on",), (
        "a thing may also stand there"
    )


def test_hard_changes_include_cooccurring_objects() -> None:
    together = [image("x", objects=("dog", "frisbee"), name=f"{n}.jpg") for n in range(5)]
    knowledge = learn(together)
    one = image("a dog on a couch", objects=("dog", "couch"))
    about = Subject(read_caption("a dog on a couch"), image_facts(one, knowledge), knowledge)
    hard, easy = ([made.inserted for made in MAKERS["replace_obj"](about, split)] for split in ("hard", "easy"))
    assert ("frisbee",) in hard
    assert ("frisbee",) not in easy


@pytest.fixture(scope="module")
def built():
    return build(synthetic_images(240), BuildSettings(pairs=140))


def outside_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a caption without its changed characters."""
    for start, end in reversed(spans):
        text = f"{text[:start]}|{text[end:]}"
    return text


def faulty(pair: Counterfactual) -> bool:
    """Whether captions are equal or differ outside of their spans, or the wrong one has bad grammar."""
    words = read_caption(pair.negative).words
    articles = [first != article(second) for first, second in pairwise(words) if first in ARTICLES]
    sides = outside_spans(pair.positive, pair.positive_spans), outside_spans(pair.negative, pair.negative_spans)
    twice = any(first == second for first, second in pairwise(words))
    return any(articles) or twice or sides[0] != sides[1] or pair.positive.casefold() == pair.negative.casefold()


def test_dataset_is_deterministic_valid_and_balanced(built) -> None:
    few = synthetic_images(40)
    first, again, other = (build(few, BuildSettings(pairs=28, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert not any(map(faulty, built))
    for split in SPLITS:
        counts = Counter(pair.subset for pair in built if pair.split == split)
        assert max(counts.values()) <= 47
        assert sum(count >= 10 for count in counts.values()) >= 2, counts


def test_text_only_accuracy_is_near_chance(built) -> None:
    whole = judge_quality(built).rows[0]
    assert (whole.split, whole.subset, whole.pairs) == ("all", "all", len(built))
    assert 0.4 <= whole.shorter.value <= 0.6
    assert whole.words.value <= 0.6
    assert whole.model.value <= 0.68


def test_predictable_dataset_is_detected() -> None:
    telling = [
        Counterfactual(f"a dog {n % 9} runs", f"a zebra {n % 9} runs", image=f"{n}.jpg", split="easy")
        for n in range(60)
    ]
    assert judge_quality(telling).rows[0].words.value == 1.0
    assert judge_quality(telling).rows[0].model.value > 0.9


def test_all_annotation_formats_are_equivalent(tmp_path: Path) -> None:
    instances = {
        "images": [{"id": 7, "file_name": "000000000007.jpg"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 63, "name": "couch"}],
        "annotations": [{"image_id": 7, "category_id": 18}, {"image_id": 7, "category_id": 63}],
    }
    texts = {"images": instances["images"], "annotations": [{"image_id": 7, "caption": "a dog  on a couch"}]}
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    (tmp_path / "captions.json").write_text(json.dumps(texts))
    (tmp_path / "names.jsonl").write_text(json.dumps({"image": "000000000007.jpg", "objects": ["dog", "couch"]}))
    boxes = {"image": "000000000007.jpg", "objects": [[16, 0.5, 0.5, 1, 1], [57, 0.5, 0.5, 1, 1]]}
    (tmp_path / "boxes.jsonl").write_text(json.dumps(boxes))
    (tmp_path / "model.json").write_text(json.dumps({"000000000007.jpg": "a puppy", "000000000008.jpg": "ERROR: none"}))
    for place in ("instances.json", "names.jsonl", "boxes.jsonl"):
        found = read_sources([tmp_path / "captions.json", f"model={tmp_path / 'model.json'}"], objects=tmp_path / place)
        assert [one.objects for one in found] == [{"dog", "couch"}], place
        assert [(one.text, one.source) for one in found[0].captions] == [
            ("a dog on a couch", "people"),
            ("a puppy", "model"),
        ]
        assert image_number(found[0].name) == 7
    (tmp_path / "boxes.jsonl").write_text(json.dumps({**boxes, "objects": [[99, 0, 0, 0, 0]]}))
    with pytest.raises(InputError, match="exceeds the 80 class names"):
        read_objects(tmp_path / "boxes.jsonl")


def test_captions_with_known_hallucinations_are_not_used(tmp_path: Path) -> None:
    rows = [
        {"image": "1.jpg", "caption": "a dog", "system": "m", "hallucinated": [], "objects": ["dog"]},
        {"image": "1.jpg", "caption": "a cat", "system": "m", "hallucinated": ["cat"], "objects": ["dog"]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [one.text for one in read_sources([tmp_path / "rows.jsonl"])[0].captions] == ["a dog"]


def test_invalid_settings_and_missing_annotations_are_rejected() -> None:
    with pytest.raises(UnknownNameError, match="'replace_ob'.*'replace_obj'"):
        BuildSettings(subsets=("replace_ob",))
    with pytest.raises(ConfigError, match="pairs must be at least 1"):
        BuildSettings(pairs=0)
    with pytest.raises(InputError, match="expected annotated objects"):
        build([AnnotatedImage("1.jpg", (SourcedCaption("a dog runs", "people"),))], BuildSettings())


def test_the_command_builds_checks_and_the_benchmark_reads(tmp_path: Path) -> None:
    rows = [
        {"image": one.name, "captions": [text.text for text in one.captions], "objects": sorted(one.objects or ())}
        for one in synthetic_images(60)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "images").mkdir()
    for row in rows:
        Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / "images" / row["image"])
    out = tmp_path / "out"
    command = ["cococf", "build", str(tmp_path / "rows.jsonl"), "-o", str(out), "--pairs", "28", "--json"]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"][0]["pairs"] == len(read_cococf([out]))
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == {"coco_cf_easy.json", "coco_cf_hard.json", "quality.json", "quality.md"}
    assert "exists" in str(invoke(*command).exception)
    assert invoke(*command, "--overwrite").exit_code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    checked = invoke("cococf", "check", out)
    assert checked.exit_code == 0
    assert "language model" in checked.stdout
    items = load("coco-cf", out, images=str(tmp_path / "images"), by="change").items
    assert len(items) == len(read_cococf([out]))
    assert all(isinstance(item.image, Path) and item.image.is_file() for item in items)
    assert {item.subset.partition("/")[0] for item in items} == {"easy", "hard"}
    document = json.loads((out / "coco_cf_easy.json").read_text())
    assert set(document["meta"]) >= {"gen_captions", "subsets", "settings"}
    assert set(document["data"][0]) >= {"image_id", "image_path", "caption", "negative_caption"}
    change = document["data"][0]["change"]
    assert (change["action"], change["kind"][:3]) == tuple(document["data"][0]["subset"].split("_"))
    start, end = change["negative_spans"][0]
    assert change["inserted"][0] in document["data"][0]["negative_caption"][start:end].lower()


@needs("train_coco.jsonl", "train_coco.objects.jsonl")
def test_real_captions_give_valid_pairs() -> None:
    found = read_sources([FOLDER / "train_coco.jsonl"], objects=FOLDER / "train_coco.objects.jsonl")[:150]
    pairs = build(found, BuildSettings(pairs=70))
    assert len(pairs) > 70
    assert not any(map(faulty, pairs))


class Biased:
    """A reader with its own bias for some words, and the common bias for the true caption."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, text: str) -> float:
        if "-" in text:  # the true caption
            return 0.0
        return -(1.5 + Random(text).gauss(0, 2) + Random(f"{self.seed}{text}").gauss(0, 3))


def test_control_brings_an_independent_reader_to_chance() -> None:
    def judged(control: Biased | None) -> float:
        balance, chance, found = Balance(), Random(0), []
        for number in range(500):
            options = [
                Counterfactual(f"a {number}- x", f"a {number}{letter} x", "replace_obj") for letter in "abcdefgh"
            ]
            made = balance.choose(options, (Biased(1), Biased(2)), chance, control=control)
            found += [made] if made else []
        assert len(found) > 300
        return sum(Biased(4)(change.negative) < 0 for change in found) / len(found)

    assert judged(None) > 0.55
    assert abs(judged(Biased(3)) - 0.5) < 0.05


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    tiny_lm.make_tiny_llama(folder)
    return folder


def test_likelihoods_equal_the_loss_of_the_model(language_model) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = ["a dog runs", "a cat", "two long elephants sit on a bench"]
    found = read_likelihoods([*texts, texts[0]], str(language_model))
    model = AutoModelForCausalLM.from_pretrained(language_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    for text in texts:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        with torch.no_grad():
            logs = model(ids).logits.log_softmax(-1)[0, :-1]
        assert found[text] == pytest.approx(float(logs.gather(1, ids[0, 1:, None]).sum()), abs=2e-3)


def test_check_reads_a_set_with_and_without_a_language_model(tmp_path, language_model) -> None:
    rows = [{"image_path": f"{n}.jpg", "caption": "a dog", "negative_caption": "a cat"} for n in range(4)]
    (tmp_path / "coco_cf_easy.json").write_text(json.dumps(rows))
    for more in ([], ["--reader", str(language_model)]):
        checked = invoke("cococf", "check", str(tmp_path / "coco_cf_easy.json"), *more, "--json")
        assert checked.exit_code == 0, checked.output
        assert (json.loads(checked.stdout)["rows"][0]["reader"] is None) == (not more)


@pytest.mark.parametrize("content", ["{}", "[]", '"a"', "[1]", '{"data": {}}', '[{"caption": "a"}]', "not json"])
def test_other_json_is_rejected_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(InputError, match=r"other\.json") as caught:
        read_cococf([tmp_path / "other.json"])
    assert "\n" not in str(caught.value)


def test_predictable_subsets_are_reported(tmp_path: Path) -> None:
    telling = [
        Counterfactual(f"a dog {n % 9} runs", f"a zebra {n % 9} runs", "replace_att", image=f"{n}.jpg", split="hard")
        for n in range(60)
    ]
    even = [
        Counterfactual(f"a {one} sits", f"a {two} sits", "replace_obj", image=f"{n}.jpg", split="easy")
        for n in range(60)
        for one, two in [("dog", "cat") if n % 2 else ("cat", "dog")]
    ]  # fmt: skip
    assert judge_quality(even).leaning == ()
    found = judge_quality([*telling, *even])
    assert any(line.startswith("hard replace_att: language model 100.0") for line in found.leaning)
    assert not any(line.startswith("easy") for line in found.leaning)
    assert "- hard replace_att: bag of words" in section(found)
    assert found.to_dict()["leaning"] == list(found.leaning)
    rows = [{"image_path": p.image, "caption": p.positive, "negative_caption": p.negative} for p in telling]
    (tmp_path / "coco_cf_hard.json").write_text(json.dumps(rows))
    done = invoke("cococf", "check", str(tmp_path / "coco_cf_hard.json"))
    assert "warning: the text alone is predictive: hard" in done.stderr


def test_unnatural_changes_are_skipped() -> None:
    texts = ["a man walking down a street"] * 20 + ["a man kneeling next to a dog"] * 20
    texts += ["a woman running down a street", "a man sitting in a large chair", "an empty street"] * 20
    reads_well = collocation_test(texts)
    easy, hard = (changes("a man walking down a street", "replace_rel", split) for split in SPLITS)
    negatives = {change.negative for change in (*easy, *hard)}
    assert {"a man kneeling down a street", "a man running down a street", "a man jumping down a street"} <= negatives
    assert not reads_well("a man walking down a street", "a man kneeling down a street")
    assert reads_well("a man walking down a street", "a man running down a street")
    assert reads_well("a man walking down a street", "a man jumping down a street"), "a word that nobody uses"
    assert not reads_well("a man sitting in a chair", "a chair sitting in a man")
    assert reads_well("a man in a red chair", "a man in a large red chair")
    assert not reads_well("a man in a large chair", "a man in an empty chair")


def test_dataset_has_no_unnatural_changes() -> None:
    images = [
        image("a man walking down a street", "a man sitting in a chair", objects=("person", "chair"), name=f"{n}.jpg")
        for n in range(30)
    ]
    images += [image("a man kneeling on the grass", objects=("person",), name=f"{n}.png") for n in range(30)]
    pairs = build(images, BuildSettings(pairs=40, subsets=("replace_rel",)))
    assert not [pair.negative for pair in pairs if "kneeling down" in pair.negative or "in a man" in pair.negative]


def test_possibly_true_changes_are_skipped() -> None:
    assert changes("a red car on a street", "replace_att", "easy", others=("many cars on a street",)) == []
    assert changes("a red car on a street", "replace_att", "easy", others=("a car",))
    assert changes("a man in front of a laptop", "replace_rel", "hard") == [], "who sits behind it sits in front of it"
    assert changes("a man in front of a car", "replace_rel", "hard")
    of_his = changes("a man on his skis", "replace_obj", "hard", objects=("person",))
    assert not [change for change in of_his if change.inserted == ("woman",)], "no woman is on his skis"


def test_paper_preset_changes_most_captions_in_the_ways_of_the_paper_and_the_text_does_not_tell() -> None:
    images = synthetic_images(120)
    one = [replace(own, captions=own.captions[:1]) for own in images]
    pairs = build(one, BuildSettings.paper())
    assert requested(one, BuildSettings.paper()) == 240
    assert len(pairs) >= 0.8 * 240
    (whole, *_) = judge_quality(pairs).rows
    assert max(whole.words.value, whole.shorter.value) <= 0.6
    assert {pair.subset for pair in pairs} <= {"replace_obj", "replace_att", "replace_rel"}
    fewer = build(one, BuildSettings(subsets=("replace_obj", "replace_att", "replace_rel")))
    assert len(fewer) < len(pairs)


def test_paper_preset_replaces_scenes_if_a_caption_has_nothing_else() -> None:
    texts = (
        "a living room filled with furniture.",
        "a street sign that is covered in snow.",
        "a tray with rice on it.",
    )
    images = [
        AnnotatedImage(f"{number}.jpg", (SourcedCaption(text, "llava"),), frozenset())
        for number, text in enumerate(texts)
    ]
    pairs = build(images, BuildSettings.paper())
    assert len(pairs) == 6  # one easy and one hard change of each caption
    scenes = vocabulary().scenes
    for pair in pairs:
        assert pair.subset == "replace_obj"
        ((removed,), (inserted,)) = pair.removed, pair.inserted
        assert scenes[removed].slot == scenes[inserted].slot
        assert (scenes[removed].family == scenes[inserted].family) == (pair.split == "hard")
        assert inserted not in pair.positive
        assert inserted not in scenes[removed].near
    with pytest.raises(InputError, match="none of 3 images"):
        build(images, BuildSettings())  # balanced sets use annotated objects only


def test_paper_preset_counts_per_captioner_and_does_not_edit_true_captions() -> None:
    images = synthetic_images(120)
    both = [
        replace(own, captions=tuple(SourcedCaption(text.text, who) for who in ("a", "b") for text in own.captions))
        for own in images
    ]
    few = BuildSettings.paper(pairs=7, subsets=("replace_obj",))
    pairs = build(both, few)
    assert Counter((pair.source, pair.split) for pair in pairs) == dict.fromkeys(
        [(who, split) for who in ("a", "b") for split in SPLITS], 7
    )
    together = build(both, BuildSettings(pairs=7, subsets=("replace_obj",)))
    assert Counter(pair.split for pair in together) == dict.fromkeys(SPLITS, 7)
    said = {caption.text for own in images for caption in own.captions}
    assert all(pair.positive in said for pair in pairs)
