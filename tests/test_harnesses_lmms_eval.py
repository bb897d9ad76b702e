"""lmms-eval tasks: configuration, scoring, and lmms-eval if it is installed."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from msdscore import ConfigError, Scorer
from msdscore_lab.harnesses.lmms_eval import captions

yaml = pytest.importorskip("yaml")
RED = Image.new("RGB", (64, 64), "red")
TASKS = Path(captions.__file__).parent / "tasks"


class Loader(yaml.SafeLoader):  # type: ignore[name-defined]  # it may be missing
    """Load tasks as lmms-eval does: `!function` is a Python module and a name in it."""


def _function(loader, node):
    module, _, name = loader.construct_scalar(node).rpartition(".")
    return getattr(import_module(module), name)


Loader.add_constructor("!function", _function)


def config(path: Path) -> dict:
    found = yaml.load(path.read_text(encoding="utf-8"), Loader)
    return {**config(path.parent / found.pop("include")), **found} if "include" in found else found


@pytest.mark.parametrize("path", sorted(TASKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_task_configuration(path):
    task = config(path)
    assert task["task"] == path.stem
    assert task["process_results_use_image"] is True
    assert task["process_results"] is captions.process_results
    assert task["doc_to_visual"]({"image": RED.convert("L")})[0].mode == "RGB"
    assert task["doc_to_target"]({}) == ""
    assert {"dataset_path", "test_split", "doc_to_text", "generation_kwargs"} <= task.keys()


def test_metrics_of_the_tasks_equal_the_returned_values():
    found = captions.caption_scores("toy")({"image": RED}, ["a red square"])
    metrics = {one["metric"] for one in config(TASKS / "msd_flickr30k_test.yaml")["metric_list"]}
    assert metrics - found.keys() == {
        "msd_match",
        "msd_precision",
        "msd_information",
        "msd_invented",
    }  # toy has no bank
    assert found["msd"] == Scorer("toy").score(RED, "a red square").msd
    assert found["msd_least_supported"]


def test_failed_captions_are_excluded_from_the_means():
    found = captions.caption_scores("toy")({"image": RED}, [""])
    assert found.keys() == {"msd_judged", "msd_reason"}
    assert found["msd_judged"] == 0.0


def test_missing_images_error_names_the_setting():
    with pytest.raises(ConfigError, match="no 'image', only question"):
        captions.caption_scores("toy")({"question": "?"}, ["a dog"])


def test_custom_image_column():
    found = captions.caption_scores("toy", image="photo")({"photo": RED}, ["a red square"])
    assert found["msd_judged"] == 1.0


def test_the_folder_is_printed():
    command = [sys.executable, "-m", "msdscore_lab.harnesses.lmms_eval"]
    assert Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()) == TASKS


@pytest.mark.filterwarnings("ignore")
def test_with_lmms_eval(tmp_path):
    pytest.importorskip("lmms_eval", reason="lmms-eval is not installed (it brings about 60 packages)")
    datasets = pytest.importorskip("datasets")
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    features = datasets.Features({"image": datasets.Image()})
    images = {"image": [RED, Image.new("RGB", (64, 64), "blue")]}
    datasets.Dataset.from_dict(images, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    lines = [f"include: {TASKS / '_captions_yaml'}", "task: msd_local", "dataset_path: parquet", "test_split: test"]
    lines += ["dataset_kwargs:", "  data_files:", f"    test: {tmp_path / 'rows.parquet'}"]
    (tmp_path / "msd_local.yaml").write_text("\n".join(lines))
    manager = TaskManager("ERROR", include_path=[str(TASKS), str(tmp_path)], include_defaults=False)
    assert {path.stem for path in TASKS.glob("*.yaml")} < set(manager.all_tasks)
    found = simple_evaluate(
        model="dummy", model_args="response=a red square", tasks=["msd_local"], task_manager=manager, batch_size=1
    )
    assert found["results"]["msd_local"]["msd_judged,none"] == 1.0
    scorer = Scorer()
    expected = sum(scorer.score(image, "a red square").msd for image in images["image"]) / 2
    assert found["results"]["msd_local"]["msd,none"] == pytest.approx(expected)


def test_tasks_average_the_columns_of_the_default_score():
    listed = {row["metric"]: row["higher_is_better"] for row in config(TASKS / "_captions_yaml")["metric_list"]}
    assert listed["msd_precision"]
    assert listed["msd_information"]


def test_the_shared_task_works_with_any_column_of_images():
    photo = Image.new("RGBA", (64, 64), "red")
    doc = {"id": 3, "photo": photo, "question": "what?"}
    assert captions.visual(doc)[0].mode == "RGB"
    found, named = (captions.caption_scores("toy", image=name)(doc, ["a red square"]) for name in (None, "photo"))
    assert found == named
    assert captions.visual({"image": photo, "other": photo})[0].size == (64, 64)  # the default name has priority
    for wrong in ({"id": 3}, {"left": photo, "right": photo}):
        with pytest.raises(ConfigError, match="process_results_use_image"):
            captions.visual(wrong)
