"""Benchmark runs end to end with the toy encoder: statistics, controls, crashes and reported failures."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench_sets import COLOURS, encoded, make_expert, make_sugarcrepe, write_images, write_rows
from chat_server import ChatServer
from counting import CountingEncoder
from msdscore.encoders.registry import built_in
from msdscore.errors import ConfigError, InputError, RunError, UnknownNameError
from msdscore.scorer import Scorer
from msdscore_lab.benchmarks.base import Pair, image_key, wrong_images
from msdscore_lab.benchmarks.registry import benchmarks, load
from msdscore_lab.benchmarks.results.grids import result_grids
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.benchmarks.run.cases import item_batches
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan, prepare_work
from msdscore_lab.benchmarks.run.runner import run_benchmark

METRICS = ("cosine", "msd", "soft-msd", "support", "length", "constant")


class Counting(Scorer):
    """A scorer that counts the inputs of its encoder."""

    def __init__(self, encoder=None) -> None:
        super().__init__(encoder or CountingEncoder(), "short")

    images = property(lambda self: self.encoder.images)
    captions = property(lambda self: self.encoder.captions)


@pytest.fixture
def scorer():
    return Counting()


def plan(root, name="sugarcrepe", metrics=METRICS, **more):
    return BenchmarkPlan(name=name, root=root, metrics=metrics, samples=20, **more)


def run(plan, folder, scorer, **more):
    return run_benchmark(plan, folder / "out" / f"{plan.name}.json", lambda: scorer and scorer.pipeline, **more)


def test_run_writes_statistics_controls_and_scores(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path)), tmp_path, scorer)
    assert (result.items, result.images, result.failed) == (16, 8, 0)
    cosine, constant = result.metric("cosine"), result.metric("constant")
    assert cosine.figure("accuracy/replace_att").value == 1.0
    assert cosine.figures[0].name == "accuracy/mean"
    wrong = {figure.name: figure.value for figure in cosine.control}
    assert wrong["accuracy/replace_att"] < 0.7
    assert constant.figures[0].value == 0
    assert constant.figures[0].ties == 16
    assert "|bench:sugarcrepe|protocol:official|n:16|seed:0" in cosine.signature
    assert cosine.signature.startswith("cosine|enc:toy@1|v:")
    assert result.metric("msd").signature.startswith("msd|enc:toy@1|k:3,2|")
    assert result.versions["msdscore"]
    assert read_result(tmp_path / "out" / "sugarcrepe.json") == result
    table = pq.read_table(tmp_path / "out" / "sugarcrepe.parquet")
    assert table.column("id").to_pylist() == [item.id for item in load("sugarcrepe", tmp_path).items]
    assert {"cosine", "cosine@wrong", "length@wrong", "error"} <= set(table.column_names)


def test_scores_equal_those_of_the_scorer_with_true_and_wrong_images(tmp_path, scorer):
    items = load("sugarcrepe", make_sugarcrepe(tmp_path)).items
    run(plan(tmp_path, seed=3, batch_images=3), tmp_path, scorer)
    table = pq.read_table(tmp_path / "out" / "sugarcrepe.parquet")
    swapped = wrong_images(items, seed=3)
    for column, images in (("soft-msd", [item.image for item in items]), ("soft-msd@wrong", swapped)):
        for item, image, found in zip(items, images, table.column(column).to_pylist(), strict=True):
            expected = [row["soft_msd"] for row in scorer.rank(image.read(), item.captions).rows()]
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_every_image_and_caption_is_encoded_once(tmp_path, scorer):
    run(plan(make_sugarcrepe(tmp_path)), tmp_path, scorer)
    assert scorer.images == [8]
    assert len(scorer.captions) == len(set(scorer.captions)) == 16
    small = Counting()
    run(plan(tmp_path, batch_images=3), tmp_path / "small", small)
    assert small.images == [4, 3, 1]  # one wrong image outside of the batch, which is cached for its own batch
    assert len(small.captions) == len(set(small.captions)) == 16


def test_no_encoder_is_loaded_for_metrics_that_need_none(tmp_path):
    make_sugarcrepe(tmp_path)

    def never():
        raise AssertionError("an encoder was loaded")

    result = run_benchmark(plan(tmp_path, metrics=("length", "random")), tmp_path / "out.json", never)
    assert result.encoder == ""
    assert result.metric("length").control[0].value == result.metric("length").figures[0].value


def test_interrupted_run_resumes(tmp_path):
    make_sugarcrepe(tmp_path)
    whole = run(plan(tmp_path, batch_images=2), tmp_path / "whole", Counting())

    with pytest.raises(KeyboardInterrupt):
        run(plan(tmp_path, batch_images=2), tmp_path, Counting(CountingEncoder(stop_after=4)))
    assert not (tmp_path / "out" / "sugarcrepe.json").exists()
    again = Counting()
    done: list[tuple[int, int]] = []
    result = run(plan(tmp_path, batch_images=2), tmp_path, again, progress=lambda *now: done.append(now))
    assert len(again.images) == 2
    assert done[-1] == (16, 16)
    assert result == whole


def test_another_protocol_evaluates_existing_scores_into_another_file(tmp_path, scorer):
    official = run(plan(make_sugarcrepe(tmp_path)), tmp_path, scorer)
    count = len(scorer.images)
    result = run(plan(tmp_path, protocol="authors"), tmp_path, scorer)
    assert result.protocol == "authors"
    assert len(scorer.images) == count
    assert read_result(tmp_path / "out" / "sugarcrepe-authors.json") == result
    assert read_result(tmp_path / "out" / "sugarcrepe.json") == official
    with pytest.raises(UnknownNameError, match="'offical'.*'official'"):
        run(plan(tmp_path, protocol="offical"), tmp_path, scorer)


def test_additional_metric_is_scored_without_the_others(tmp_path):
    make_sugarcrepe(tmp_path)
    whole = run(plan(tmp_path, metrics=("cosine", "msd", "length")), tmp_path / "whole", Counting())
    run(plan(tmp_path, metrics=("cosine", "length")), tmp_path, Counting())
    before = pq.read_table(tmp_path / "out" / "sugarcrepe.parquet")
    result = run(plan(tmp_path, metrics=("cosine", "msd", "length")), tmp_path, Counting())
    assert result == whole
    after = pq.read_table(tmp_path / "out" / "sugarcrepe.parquet")
    assert after.column("cosine") == before.column("cosine")
    again = Counting()
    assert run(plan(tmp_path, metrics=("length", "msd")), tmp_path, again).metric("msd") == whole.metric("msd")
    assert again.images == []
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == []


def test_other_results_are_not_overwritten_by_default(tmp_path, scorer):
    run(plan(make_sugarcrepe(tmp_path), metrics=("msd",)), tmp_path, scorer)
    with pytest.raises(RunError, match=r"seed \(0, now 1\)"):
        run(plan(tmp_path, metrics=("msd",), seed=1), tmp_path, scorer)
    with pytest.raises(RunError, match=r"options.subsets \(nothing, now"):
        run(plan(tmp_path, metrics=("msd",), options={"subsets": "add_att"}), tmp_path, scorer)
    other = Scorer("toy", "long")
    with pytest.raises(RunError, match="k:3,2.*, now .*k:5,3"):
        run(plan(tmp_path, metrics=("msd",)), tmp_path, other)
    result = run(plan(tmp_path, metrics=("msd",)), tmp_path, other, overwrite=True)
    assert "|k:5,3|" in result.metric("msd").signature
    with pytest.raises(ConfigError, match="a .json file"):
        run_benchmark(plan(tmp_path), tmp_path / "out.csv", lambda: scorer.pipeline)


def test_foreign_files_are_not_replaced(tmp_path):
    root, out = make_sugarcrepe(tmp_path / "data"), tmp_path / "out"
    out.mkdir()

    def attempt(output, **more):
        return run_benchmark(plan(root, metrics=("length",)), output, lambda: pytest.fail("no encoder"), **more)

    for suffix, said in ((".json", "[1, 2]"), (".parquet", "not a table")):
        alien = out / f"sugarcrepe{suffix}"
        alien.write_text(said)
        with pytest.raises(RunError, match=f"{suffix}: .*not written by"):
            attempt(out / "sugarcrepe.json")
        assert alien.read_text() == said
        attempt(out / "sugarcrepe.json", overwrite=True)
        for path in out.iterdir():
            path.unlink()
    for suffix in (".json", ".parquet"):  # the annotations, which `bench composite --root data -o data` would replace
        (root / f"composite{suffix}").write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(RunError, match=f"composite{suffix}: is a file of"):
                attempt(root / "composite.json", overwrite=overwrite)
        (root / f"composite{suffix}").unlink()


@pytest.mark.parametrize("lost", ["rows", "column", "end"])
def test_damaged_scores_of_an_earlier_run_are_rejected(tmp_path, scorer, lost):
    run(plan(make_sugarcrepe(tmp_path)), tmp_path, scorer)
    path = tmp_path / "out" / "sugarcrepe.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 3) if lost == "rows" else table.drop_columns(["error"]), path)
    if lost == "end":
        path.write_bytes(path.read_bytes()[:-100] + b"PAR1")
    with pytest.raises(RunError, match="choose another -o"):
        run(plan(tmp_path), tmp_path, scorer)


def write_image_files(tmp_path, colours=COLOURS):
    """Write the benchmark with images as separate files."""
    make_sugarcrepe(tmp_path)
    (tmp_path / "sugarcrepe.images.parquet").unlink()
    (tmp_path / "images").mkdir(exist_ok=True)
    for colour in colours:
        (tmp_path / "images" / f"{colour}.png").write_bytes(encoded(colour))
    return tmp_path


def test_new_and_replaced_images_are_refused(tmp_path):
    metrics = ("cosine", "msd", "length")
    first = run(plan(write_image_files(tmp_path, COLOURS[:5]), metrics=metrics), tmp_path, Counting())
    assert (first.items, first.counted, first.failed) == (16, 10, 6)
    assert first.metric("cosine").missing == 6
    same = Counting()
    assert run(plan(tmp_path, metrics=metrics), tmp_path, same) == first
    assert same.images == []  # failed images are not retried
    write_image_files(tmp_path)
    with pytest.raises(RunError, match="images were added"):
        run(plan(tmp_path, metrics=metrics), tmp_path, same)
    second = run(plan(tmp_path, metrics=metrics), tmp_path, Counting(), overwrite=True)
    assert (second.counted, second.failed) == (16, 0)
    (tmp_path / "images" / "red.png").write_bytes(encoded("black", 40))
    with pytest.raises(RunError, match="images were added"):
        run(plan(tmp_path, metrics=("length",)), tmp_path, same)
    assert same.images == []


def test_control_uses_only_readable_images(tmp_path, scorer):
    result = run(plan(write_image_files(tmp_path, COLOURS[:4]), metrics=("cosine", "length")), tmp_path, scorer)
    cosine = result.metric("cosine")
    assert [figure.n for figure in cosine.figures] == [figure.n for figure in cosine.control] == [8, 4, 4, 8]
    assert [figure.n for figure in result.metric("length").figures] == [8, 4, 4, 8]
    swapped = wrong_images(load("sugarcrepe", tmp_path).items, 0)
    assert {image.stem for image in swapped} == set(COLOURS[:4])


def test_all_statistics_use_the_same_items(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path, broken=True)), tmp_path, scorer)
    assert result.failed == 3  # two items of the broken image, one caption without words
    assert any("cannot be decoded" in reason or "not an image" in reason for reason in result.failures)
    assert any("has no words that the encoder can read" in reason for reason in result.failures)
    assert (result.metric("msd").missing, result.metric("length").missing) == (3, 0)
    # Two more items get the broken image in the control.
    assert {m.figure("accuracy/all").n for m in result.metrics} == {result.counted} == {11}
    assert {f.n for m in result.metrics for f in m.control if f.name == "accuracy/all"} == {11}
    assert any(what.startswith("items left out: not scored by every metric") for what in result.notes)
    assert "(11 of 16 items, 6 images)" in result_grids([result])[0].title
    assert "only 6 images: intervals are rough" in result_grids([result])[0].notes


def test_single_pair_has_no_interval(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path), limit=1), tmp_path, scorer)
    head = result.metric("cosine").figures[0]
    assert head.value == 1.0
    assert result_grids([result])[0].rows[0][1:3] == ("100.0", "[2.5, 100.0]")
    expert = run(plan(make_expert(tmp_path), name="flickr8k-expert", metrics=("length",), limit=1), tmp_path, None)
    assert result_grids([expert])[0].rows[0][1:3] == ("–", "–")


def test_length_is_a_row_and_matched_length_a_column(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path)), tmp_path, scorer)
    assert result.length is not None
    assert result.length.label == "length alone (shorter wins)"
    assert result.length.figures[0].value == 0.5  # longer captions of add_att are wrong, those of replace_att as long
    matched = result.metric("cosine").matched
    assert (matched.n, matched.value) == (8, 1.0)  # only replace_att has captions of equal length
    rated = run(plan(make_expert(tmp_path), name="flickr8k-expert", metrics=("cosine", "length")), tmp_path, scorer)
    assert rated.metric("cosine").matched.name == "tau_c"


def test_result_contains_command_versions_and_data(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path), command="msdscore bench sugarcrepe"), tmp_path, scorer)
    made = read_result(tmp_path / "out" / "sugarcrepe.json").made
    assert made == result.made
    assert (made.command, made.device) == ("msdscore bench sugarcrepe", "cpu")
    assert made.date.endswith("+00:00")
    assert set(made.data) == {"items"}


def test_options_of_the_reader_are_in_the_signature(tmp_path, scorer):
    made = plan(make_sugarcrepe(tmp_path), metrics=("length",), options={"subsets": "add_att"}, limit=3)
    assert run(made, tmp_path, scorer).metrics[0].signature.endswith("|n:3|seed:0|subsets:add_att|limit:3")


def make_captioned(folder):
    rows = [{"image": f"{colour}.png", "captions": [f"a {colour} square"]} for colour in COLOURS]
    write_images(folder / "rsicd.images.parquet", {f"{colour}.png": encoded(colour) for colour in COLOURS})
    write_rows(folder / "rsicd.jsonl", rows)
    return folder


def test_several_seeds_give_mean_and_standard_deviation(tmp_path, scorer):
    made = plan(make_captioned(tmp_path), name="rsicd", metrics=("cosine", "random"), seeds=3)
    result = run(made, tmp_path, scorer)
    single = [
        run(replace(made, seeds=1, options={"seed": seed}), tmp_path / str(seed), scorer).metric("random").figures[0]
        for seed in range(3)
    ]
    head = result.metric("random").figures[0]
    assert head.value == pytest.approx(np.mean([figure.value for figure in single]))
    assert head.spread == pytest.approx(np.std([figure.value for figure in single], ddof=1))
    assert result.seeds == 3
    assert result.metric("random").signature.endswith("|draws:3")
    assert result.metric("cosine").signature.count("seed:") == 1
    one = run(replace(made, seeds=1, options={"seed": 2}), tmp_path / "one", scorer).metric("cosine").signature
    assert "|seed:0|draw:2" in one
    assert "mean of 3 draws; ± is their standard deviation" in result_grids([result])[0].notes
    assert read_result(tmp_path / "out" / "rsicd.json") == result
    with pytest.raises(ConfigError, match="sugarcrepe has no random draws"):
        run(plan(make_sugarcrepe(tmp_path), seeds=2), tmp_path, scorer)


def test_result_notes_a_domain_outside_of_the_training_data(tmp_path, scorer):
    made = plan(make_captioned(tmp_path), name="rsicd", metrics=("cosine",))
    result = run(made, tmp_path, scorer)
    told = "items from remote sensing, which encoder toy is not known to be trained for: match and colours are not calibrated for it"
    assert f"{told}: {len(COLOURS)}" in result_grids([result])[0].notes
    assert read_result(tmp_path / "out" / "rsicd.json").notes == result.notes
    text_only = run(replace(made, metrics=("length",)), tmp_path / "text", scorer)
    assert not text_only.notes
    assert not run(plan(make_sugarcrepe(tmp_path), metrics=("cosine",)), tmp_path / "photos", scorer).notes
    for benchmark in benchmarks():
        assert not benchmark.domain or any(benchmark.domain in encoder.domains for encoder in built_in())


def test_limit_is_spread_over_the_subsets(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path), limit=5), tmp_path, scorer)
    assert result.items == 5
    assert {figure.name for figure in result.metrics[0].figures} >= {"accuracy/replace_att", "accuracy/add_att"}
    assert result.notes == {"items left out by --limit": 11}


def test_single_image_has_no_control(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path), limit=1), tmp_path, scorer)
    assert result.metrics[0].control == ()
    assert "no wrong-image control: all items have the same image" in result.notes


def test_incompatible_metrics_are_rejected_before_scoring(tmp_path, scorer):
    make_expert(tmp_path)
    with pytest.raises(ConfigError, match="rank-agg .*flickr8k-expert"):
        run(plan(tmp_path, name="flickr8k-expert", metrics=("rank-agg",)), tmp_path, scorer)
    with pytest.raises(InputError, match="refclipscore needs references"):
        run(plan(tmp_path, name="flickr8k-expert", metrics=("refclipscore",)), tmp_path, scorer)
    assert not scorer.images
    with pytest.raises(ConfigError, match="limit must .*got 0"):
        plan(tmp_path, limit=0)


def test_scores_from_a_file_are_added_to_the_result(tmp_path, scorer):
    items = load("sugarcrepe", make_sugarcrepe(tmp_path)).items
    write_rows(tmp_path / "given.jsonl", [{"id": item.id, "scores": [1, 0]} for item in items[:-1]])
    label = f"file:{tmp_path / 'given.jsonl'},partial=true"
    result = run(plan(tmp_path, metrics=("cosine", label)), tmp_path, scorer)
    given = result.metric(label)
    assert given.figure("accuracy/all").value == 1
    assert given.missing == 1
    assert result.metric("cosine").figure("accuracy/all").n == 15
    assert given.control == ()
    assert "file:given.jsonl@" in given.signature


def test_control_of_reference_metrics_uses_references_of_the_wrong_image(tmp_path):
    pytest.importorskip("pycocoevalcap", reason="needs the extra 'references'")
    rows = {"HC": []}
    for place, colour in enumerate(COLOURS):
        captions = [f"a {colour} square on a wall", f"a {COLOURS[place - 1]} square on a wall"]
        rows["HC"].append(
            {"image": f"{colour}.png", "captions": captions, "label": 0, "references": [f"the {colour} square"]}
        )
    (tmp_path / "pascal_50s.json").write_text(json.dumps(rows))
    result = run(plan(tmp_path, name="pascal50s", metrics=("rouge-l",)), tmp_path, None)
    assert result.metrics[0].figures[0].value == 1
    assert result.metrics[0].control[0].value < 0.7


def test_chunks_cover_all_items_and_agree_with_the_control(tmp_path):
    items = [Pair(f"{n}", Path(f"{n % 7}.jpg"), "p", "n") for n in range(20)]
    for size in (1, 2, 3, 7, 100):
        found = list(item_batches(items, seed=5, control=True, size=size))
        assert sorted(number for batch in found for number in batch.items) == list(range(20))
        swapped = wrong_images(items, seed=5)
        for batch in found:
            for number, own, other in zip(batch.items, batch.owner, batch.wrong, strict=True):
                assert image_key(batch.images[own]) == image_key(items[number].image)
                assert image_key(batch.images[other]) == image_key(swapped[number])
    assert all(not batch.wrong for batch in item_batches(items, seed=5, control=False))


def test_unreadable_results_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.json: cannot be read"):
        read_result(tmp_path / "nowhere.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="in format 3"):
        read_result(tmp_path / "other.json")
    (tmp_path / "half.json").write_text('{"format": 3, "metrics": [], "benchmark": "x"}')
    with pytest.raises(InputError, match="half.json: is damaged"):
        read_result(tmp_path / "half.json")
    (tmp_path / "half.parquet").write_bytes(b"PAR1\xff")
    for name, hint in (("half", "use .*half.json"), ("scored", "rank-captioners")):
        with pytest.raises(InputError, match=rf"{name}.parquet: expected a result .*\.json.*; .*{hint}"):
            read_result(tmp_path / f"{name}.parquet")


def test_unknown_metric_of_a_result_lists_the_known_ones(tmp_path, scorer):
    result = run(plan(make_sugarcrepe(tmp_path), metrics=("cosine", "length")), tmp_path, scorer)
    with pytest.raises(InputError, match="'msd'; it has cosine, length"):
        result.metric("msd")
    assert replace(result, items=3).items == 3


def test_judge_decides_ties_of_battles(tmp_path):
    rows, verdicts = [], []
    for number, winner in enumerate(["GPT-4o-0806", "LLaVA-1.5-7B", "equal", "bad", "GPT-4o-0806"]):
        rows.append(
            {"img": f"{number}.jpg", "source1": "GPT-4o-0806", "source2": "LLaVA-1.5-7B", "caption1": "one",
             "caption2": "two", "winner": winner, "cluster": "level 1"}
        )  # fmt: skip
        verdicts.append(
            {"id": f"{number}:{number}.jpg", "verdict": {"GPT-4o-0806": "a", "LLaVA-1.5-7B": "b"}.get(winner, "tie")}
        )
    verdicts[4]["verdict"] = "tie"
    (tmp_path / "caparena_annots_eval.json").write_text(json.dumps(rows))
    write_rows(tmp_path / "judge.jsonl", verdicts)
    write_rows(tmp_path / "scores.jsonl", [{"id": row["id"], "scores": [1, 0]} for row in verdicts])
    labels = tuple(f"file:{tmp_path / name}.jsonl" for name in ("judge", "scores"))
    result = run(plan(tmp_path, name="caparena", metrics=labels), tmp_path, None)
    judged, scored = result.metrics
    assert judged.judged
    assert not scored.judged
    head = judged.figure("agreement/all")
    assert (head.value, head.ties) == (0.8, 3)  # a threshold would have resulted in two ties, as in the human votes
    assert scored.figure("agreement/all").value == 0.4


def test_judge_without_any_verdict_fails_the_run(tmp_path):
    server = ChatServer()
    try:
        label = f"judge:m,url={server.url},cache={tmp_path / 'answers'},workers=1"
        wanted = plan(make_sugarcrepe(tmp_path), metrics=(label,), control=False, limit=2)
        server.reply_to = lambda body: "I cannot decide."
        with pytest.raises(RunError, match=r"none of 2 items .*Verdict: 1"):
            run(wanted, tmp_path, None)
        assert not (tmp_path / "out" / "sugarcrepe.json").exists()
        answers = iter(["Verdict: 1"])  # the verdict of one order of one pair is not enough for the other pair
        server.reply_to = lambda body: next(answers, "I cannot decide.")
        one = replace(wanted, metrics=(f"{label},orders=1,temperature=0",))
        assert run(one, tmp_path / "one", None).metric(one.metrics[0]).missing == 1
    finally:
        server.close()


def test_limit_does_not_split_the_ratings_of_an_image(tmp_path):
    made = plan(make_expert(tmp_path), name="flickr8k-expert", metrics=("length",))
    whole = prepare_work(made).item_set.items
    some = prepare_work(replace(made, limit=7)).item_set.items
    assert len(some) == 7
    counts = Counter(item.image.name for item in some)
    assert sorted(counts.values()) == [1, 3, 3]
    images = list(dict.fromkeys(item.image.name for item in whole))
    # Seven of 24 ratings come from three of eight images, evenly spread.
    assert list(counts) == [images[0], images[2], images[5]]
    assert len({item.id for item in some}) == 7
    assert set(some) <= set(whole)
    assert len(prepare_work(replace(made, limit=23)).item_set.items) == 23


def test_images_changed_during_a_run_are_rejected(tmp_path, scorer):
    root = make_sugarcrepe(tmp_path)
    others = {f"{colour}.png": encoded(other) for colour, other in zip(COLOURS, reversed(COLOURS), strict=True)}

    def replace_at_the_end(done, total):
        if done:
            write_images(root / "sugarcrepe.images.parquet", others)

    small = plan(root, batch_images=2)
    with pytest.raises(RunError, match="images were changed"):
        run(small, tmp_path, scorer, progress=replace_at_the_end)
    assert not (tmp_path / "out" / "sugarcrepe.parquet").exists()
    run(small, tmp_path, scorer)  # not from the parts of the images before
    table = pq.read_table(tmp_path / "out" / "sugarcrepe.parquet")
    run_benchmark(small, tmp_path / "clean" / "sugarcrepe.json", lambda: scorer.pipeline)
    assert table.equals(pq.read_table(tmp_path / "clean" / "sugarcrepe.parquet"))


def test_a_file_of_references_is_joined_by_image(tmp_path):
    """Items without references are excluded; an item's caption is removed from its references, ignoring case."""
    rows = [{"image": f"{colour}.png", "caption": f"a {colour} square", "human": 1 + number}
            for number, colour in enumerate(["red", "green", "blue"])]  # fmt: skip
    write_rows(tmp_path / "composite.jsonl", rows)
    write_images(tmp_path / "composite.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    lists = {"red": ["A red square.", "a red box"], "green": ["a green thing", "green grass"]}
    (tmp_path / "people.json").write_text(json.dumps(lists))
    plan = BenchmarkPlan(
        name="composite", root=tmp_path, metrics=("ref-msd", "refclipscore"), references=tmp_path / "people.json"
    )
    items = prepare_work(plan).item_set.items
    assert [item.references for item in items] == [("a red box",), ("a green thing", "green grass")]
    result = run_benchmark(plan, tmp_path / "out.json", lambda: Scorer("toy").pipeline)
    assert (result.counted, list(result.notes)) == (2, ["items left out: no references"])
    assert all("|nrefs:1-2|" in metric.signature for metric in result.metrics)
    (tmp_path / "people.json").write_text(json.dumps({"other": ["a dog"]}))
    with pytest.raises(InputError, match="references of the benchmark's"):
        prepare_work(plan)
    with pytest.raises(InputError, match="have none here"):
        prepare_work(replace(plan, references=None))
