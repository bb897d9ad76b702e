"""Training callbacks in Lightning and transformers, with logging to TensorBoard and W&B."""

import pickle
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from msdscore import ConfigError, MissingExtraError, Scorer
from msdscore.explain.figure import figure_pixels
from msdscore_torch.integrations import training
from msdscore_torch.integrations.training import ValidationCaptions, log_captions, log_scalars

COLOURS = ("red", "blue", "green")
IMAGES = [Image.new("RGB", (64, 48), colour) for colour in COLOURS]


def generate(model, images):
    return ["a red square", "a red square", ""][: len(images)]


@pytest.fixture
def sample() -> ValidationCaptions:
    return ValidationCaptions(IMAGES, generate, scorer="toy", shown=3)


class Writer:
    """Stub of TensorBoard's writer."""

    def __init__(self):
        self.scalars, self.images, self.texts = {}, {}, {}

    def add_scalar(self, name, value, step):
        self.scalars[name] = (value, step)

    def add_image(self, name, pixels, step, dataformats):
        assert dataformats == "HWC"
        self.images[name] = pixels

    def add_text(self, name, text, step):
        self.texts[name] = text


def test_means_have_intervals_and_exclude_failed_captions(sample):
    checked = sample.check(None)
    expected = [Scorer("toy").score(image, "a red square").msd for image in IMAGES[:2]]
    assert checked.means()["msd"].value == pytest.approx(np.mean(expected))
    scalars = checked.scalars("val")
    assert scalars["val/msd_low"] < scalars["val/msd"] < scalars["val/msd_high"]
    assert scalars["val/judged"] == pytest.approx(2 / 3)
    assert scalars["val/words"] == pytest.approx(2)
    assert len(checked.shown) == 2


def test_missing_caption_is_empty():
    checked = ValidationCaptions(IMAGES[:2], lambda model, some: [None, "a red square"], scorer="toy").check(None)
    assert checked.scalars("val")["val/judged"] == 0.5


def test_one_caption_has_a_mean_and_no_interval():
    scalars = ValidationCaptions(IMAGES[:1], generate, scorer="toy").check(None).scalars("val")
    assert "val/msd" in scalars
    assert "val/msd_low" not in scalars


def test_tensorboard_logs_a_figure_of_images_and_coloured_words(sample):
    pytest.importorskip("matplotlib")
    writer, checked = Writer(), sample.check(None)
    log_scalars(writer, checked.scalars("msd"), 7)
    log_captions(writer, checked, 7, prefix="msd")
    assert writer.scalars["msd/msd"] == (checked.means()["msd"].value, 7)
    pixels = writer.images["msd/captions"]
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert (pixels == figure_pixels(checked.shown)).all()
    tinted = pixels.reshape(-1, 3).astype(int)
    assert ((tinted[:, 0] > 180) & (tinted[:, 2] < 150) & (tinted[:, 1] > 50) & (tinted[:, 1] < 200)).any()  # orange
    assert "msd|enc:toy" in writer.texts["msd/signature"]


def test_wandb_logs_a_table(sample, monkeypatch):
    # The real classes need the W&B service; the stub stores its arguments.
    fake = ModuleType("wandb")
    fake.Image = lambda image: ("picture", image.size)
    fake.Html = lambda text, inject: ("html", text)

    class Table:
        def __init__(self, columns):
            self.columns, self.rows = columns, []

        def add_data(self, *row):
            self.rows.append(row)

    fake.Table = Table
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logged = []
    run = SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    log_scalars(run, {"msd/msd": 1.0}, 3)
    log_captions(run, sample.check(None), 3, prefix="msd")
    table = logged[1][0]["msd/captions"]
    assert logged[0] == ({"msd/msd": 1.0}, 3)
    assert table.columns[:2] == ["image", "caption"]
    assert len(table.rows) == 2
    image, (kind, text), msd, match, least = table.rows[1]
    assert image == ("picture", (64, 48))
    assert kind == "html"
    assert "background" in text
    assert isinstance(msd, float)
    assert match is None
    assert least


def test_invalid_arguments_are_rejected(sample):
    with pytest.raises(ConfigError, match="1 captions for 3 images"):
        ValidationCaptions(IMAGES, lambda model, some: ["x"], scorer="toy").check(None)
    with pytest.raises(ConfigError, match="at least one image"):
        ValidationCaptions([], generate)
    for log in (lambda: log_scalars(7, {}, 0), lambda: log_captions(7, sample.check(None), 0, prefix="x")):
        with pytest.raises(ConfigError, match="SummaryWriter .*got int"):
            log()


@pytest.mark.filterwarnings("ignore")  # warnings of Lightning about workers, devices and loggers
def test_lightning_callback(sample, tmp_path):
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed (extra lightning)")
    pytest.importorskip("tensorboard")
    from pytorch_lightning.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from msdscore_torch.integrations.training import LightningCallback

    modes = []

    class Module(lightning.LightningModule):  # type: ignore[name-defined]  # it may be missing
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            assert self.training
            return self.layer(batch).sum()

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def watched(model, images):
        modes.append((model.training, torch.is_grad_enabled()))
        return generate(model, images)

    data = torch.utils.data.DataLoader(torch.ones(2, 1))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=TensorBoardLogger(tmp_path), enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1,
        callbacks=[LightningCallback(ValidationCaptions(IMAGES, watched, scorer="toy"))],
    )  # fmt: skip
    trainer.fit(Module(), data, data)
    assert modes == [(False, False)]  # once, and not in the sanity check
    assert trainer.callback_metrics["msd/msd"] == pytest.approx(sample.check(None).means()["msd"].value)
    events = EventAccumulator(trainer.logger.log_dir)
    events.Reload()
    assert "msd/captions" in events.Tags()["images"]
    assert "msd/msd_low" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")
def test_transformers_callback(sample, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from msdscore_torch.integrations.training import TransformersCallback

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels=None):
            return {"loss": self.layer(x).sum(), "logits": self.layer(x)}

    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 2
    writer = Writer()
    trainer = transformers.Trainer(
        Model(),
        transformers.TrainingArguments(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, max_steps=1, eval_strategy="steps", eval_steps=1,
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[TransformersCallback(sample, loggers=[writer])],
    )  # fmt: skip
    trainer.train()
    mean = sample.check(None).means()["msd"].value
    assert writer.scalars["msd/msd"] == (pytest.approx(mean), 1)
    (logged,) = [entry for entry in trainer.state.log_history if "eval_msd" in entry]
    assert (logged["step"], logged["eval_msd"]) == (1, pytest.approx(mean))
    assert "eval_loss" in logged
    assert trainer.evaluate()["eval_msd"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("LightningCallback", "pytorch_lightning", "lightning"), ("TransformersCallback", "transformers", "hf")],
)
def test_a_callback_whose_library_is_missing_names_its_extra(name, library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(vars(training), name, raising=False)
    with pytest.raises(MissingExtraError, match=rf"{library} .*\[{extra}\]"):
        getattr(training, name)


def test_a_callback_survives_pickle():
    pytest.importorskip("transformers")
    sample = ValidationCaptions(IMAGES[:1], generate, scorer="toy")
    again = pickle.loads(pickle.dumps(training.TransformersCallback(sample, prefix="val")))
    assert type(again) is training.TransformersCallback
    with pytest.raises(AttributeError, match="has no attribute 'Callback'"):
        _ = training.Callback
