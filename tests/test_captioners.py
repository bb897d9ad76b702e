"""Captioners: local checkpoints of three families, endpoints, resumed runs, and rows for other commands."""

import base64
import io
import json
import math
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chat_server import ChatServer
from command_line import invoke
from msdscore.errors import ConfigError, InputError, RunError, WeightsError
from msdscore.rows.files import open_rows
from msdscore_lab.captioners.run import CaptionRun, NamedImage, caption_images, list_images
from msdscore_lab.captioners.writers import CaptioningSettings, endpoint_writer, load_writer
from msdscore_lab.cococf.sources import read_sources
from msdscore_lab.metrics.vlm.endpoint import Endpoint
from tiny_clip import make_tiny_clip
from tiny_models import TOWER, randomise
from tiny_talker import make_talker
from tiny_tokenizers import save_bert

COLOURS = ("red", "green", "blue", "white", "black")
GREEDY = CaptioningSettings(most_tokens=12)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for colour in COLOURS:
        Image.new("RGB", (20, 16), colour).save(folder / f"{colour}.png")
    Image.new("RGB", (16, 16), "grey").save(folder / "more" / "grey.png")
    (folder / "broken.jpg").write_bytes(b"not an image")
    (folder / "notes.txt").write_text("not an image")
    return folder


class Describer(ChatServer):
    """Endpoint that describes the colour of a pixel."""

    def reply_to(self, body):
        url = body["messages"][-1]["content"][0]["image_url"]["url"]
        image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
        return f" an image\nof {image.convert('RGB').getpixel((8, 8))} "


@pytest.fixture
def server():
    running = Describer()
    yield running
    running.close()


def rows_of(path: Path) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command(*words: object) -> list[str]:
    return ["caption", *map(str, words)]


def test_endpoint_captions_a_folder_and_reports_failures(photos, server, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "key")
    out = tmp_path / "captions.jsonl"
    words = command(photos, "-m", "vendor/gpt", "--url", server.url, "--key-env", "SECRET", "-o", out, "--json")
    done = invoke(*words, "--prompt", "What is it?", "--temperature", "0.5", "--max-tokens", "9")
    assert done.exit_code == 3, done.output
    rows = rows_of(out)
    assert [row["image"] for row in rows] == [
        "black.png", "blue.png", "broken.jpg", "green.png", "more/grey.png", "red.png", "white.png",
    ]  # fmt: skip
    assert {row["system"] for row in rows} == {"gpt"}
    assert "cannot be decoded" in rows[2]["error"] or "not an image" in rows[2]["error"]
    assert rows[5]["caption"].startswith("an image of (2")
    body = server.asked[0]
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert body["messages"][0]["content"][1]["text"] == "What is it?"
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.5, 9, "vendor/gpt")
    assert server.headers[0]["Authorization"] == "Bearer key"
    notes = json.loads((tmp_path / "captions.jsonl.run.json").read_text())
    assert notes["prompt"] == "What is it?"
    assert notes["manifest"]["settings"]["temperature"] == 0.5
    assert json.loads(done.stdout)["failed"] == 1


def test_a_dash_prints_the_rows(photos, server, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = invoke(*command(photos, "-m", "gpt", "--url", server.url, "-o", "-", "--json"))
    assert done.exit_code == 3, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["image"] for row in rows][:2] == ["black.png", "blue.png"]
    assert "7 images, 1 failed" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_interrupted_run_resumes_without_repeated_requests(photos, server, tmp_path) -> None:
    out = tmp_path / "captions.jsonl"
    words = command(photos, "-m", "gpt", "--url", server.url, "-o", out, "--batch-size", "2", "--workers", "1")
    server.replies = [(200, server.completion_of("one"), {}), (200, server.completion_of("two"), {}), (401, b"no", {})]
    stopped = invoke(*words)
    assert isinstance(stopped.exception, RunError)
    assert "401" in str(stopped.exception)
    asked = len(server.asked)
    assert invoke(*words).exit_code == 3
    assert [row["caption"] for row in rows_of(out)][:2] == ["one", "two"]
    assert len(server.asked) - asked == 4
    asked, before = len(server.asked), out.read_bytes()
    assert invoke(*words).exit_code == 3
    assert (len(server.asked), out.read_bytes()) == (asked, before)
    other = invoke(*words, "--prompt", "Hm?")
    assert "belongs to a run with another settings.prompt" in str(other.exception)
    assert invoke(*words, "--prompt", "Hm?", "--overwrite").exit_code == 3


def test_replaced_images_are_refused(photos, server, tmp_path) -> None:
    out = tmp_path / "captions.jsonl"
    words = command(photos, "-m", "gpt", "--url", server.url, "-o", out, "--batch-size", "2", "--workers", "1")
    assert invoke(*words).exit_code == 3
    assert "prompt" in json.loads((tmp_path / "captions.jsonl.run.json").read_text())
    before, asked = out.read_bytes(), len(server.asked)
    Image.new("RGB", (20, 16), "orange").save(photos / "black.png")
    assert "another image files" in str(invoke(*words).exception)
    assert (len(server.asked), out.read_bytes()) == (asked, before)
    assert invoke(*words, "--overwrite").exit_code == 3


def test_images_changed_during_a_run_are_rejected(photos, server, tmp_path) -> None:
    out = tmp_path / "captions.jsonl"
    words = command(photos, "-m", "gpt", "--url", server.url, "-o", out, "--batch-size", "2", "--workers", "1")
    reply_to = server.reply_to

    def replacing(body):
        server.reply_to = reply_to
        Image.new("RGB", (20, 16), "orange").save(photos / "black.png")
        return reply_to(body)

    server.reply_to = replacing
    stopped = invoke(*words)
    assert "images changed during the run; run again" in str(stopped.exception)
    assert not out.exists()
    assert invoke(*words, "--overwrite").exit_code == 3
    assert "165" in rows_of(out)[0]["caption"]


def test_error_for_one_image_fails_its_row_and_error_for_all_stops_the_run(photos, server, tmp_path) -> None:
    out = tmp_path / "captions.jsonl"
    words = command(photos, "-m", "gpt", "--url", server.url, "-o", out, "--workers", "1")
    server.replies = [(400, b"content policy", {}), (200, server.completion_of("two"), {})]
    done = invoke(*words)
    assert done.exit_code == 3, done.output
    first, second = rows_of(out)[:2]
    assert "answered 400: content policy" in first["error"]
    assert (first["caption"], second["caption"]) == (None, "two")
    server.replies = [(400, b"unknown parameter", {})] * 6
    stopped = invoke(*words, "--overwrite")
    assert isinstance(stopped.exception, RunError)
    assert "unknown parameter" in str(stopped.exception)


def test_interruption_does_not_wait_for_retries(server) -> None:
    server.replies = [(401, b"no", {})] + [(503, b"busy", {"Retry-After": "60"})] * 20
    writer = endpoint_writer(Endpoint(url=server.url, model="m"), CaptioningSettings(), workers=2)
    start, before = time.monotonic(), threading.active_count()
    with pytest.raises(RunError, match="401"):
        writer.write([Image.new("RGB", (8, 8))] * 6, range(6))
    while threading.active_count() > before and time.monotonic() - start < 20:
        time.sleep(0.05)
    assert time.monotonic() - start < 20


def test_invalid_rows_are_written_with_an_error(photos, server, tmp_path) -> None:
    (photos / "rows.jsonl").write_text('{"image": "red.png"}\n{broken\n{"image": null}\n')
    out = tmp_path / "captions.jsonl"
    assert invoke(*command(photos / "rows.jsonl", "-m", "gpt", "--url", server.url, "-o", out)).exit_code == 3
    good, broken, none = rows_of(out)
    assert good["error"] is None
    assert "not valid JSON" in broken["error"]
    assert "no image" in none["error"]


def test_output_is_read_by_other_commands(photos, server, tmp_path) -> None:
    out = tmp_path / "captions.jsonl"
    invoke(*command(photos, "-m", "gpt", "--url", server.url, "-o", out))
    with open_rows(out, images=photos) as rows:
        read = list(rows.read())
    assert sum(row.error is None for row in read) == 6
    assert read[0].image == str(photos / "black.png")
    sources = read_sources([out])
    assert len(sources) == 7
    assert {text.source for one in sources for text in one.captions} == {"gpt"}


def test_repeated_images_of_rows_are_captioned_once(photos, tmp_path) -> None:
    data = (photos / "red.png").read_bytes()
    table = pa.table({"file_name": ["a.jpg", "a.jpg", "b.jpg"], "image": [{"bytes": data, "path": None}] * 3})
    pq.write_table(table, tmp_path / "x.images.parquet")
    assert [one.name for one in list_images(tmp_path / "x.images.parquet")] == ["a.jpg", "b.jpg"]
    (photos / "rows.jsonl").write_text('{"image": "red.png"}\n{"image": "blue.png"}\n')
    assert list_images(photos / "rows.jsonl", limit=1) == [NamedImage("red.png", photos / "red.png")]
    (photos / "bad.jsonl").write_text('{"picture": "red.png"}\n')
    with pytest.raises(InputError, match="row 0: no image"):
        list_images(photos / "bad.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected images, found none"):
        list_images(tmp_path / "empty")


def test_chat_model_uses_the_prompt(photos, tmp_path) -> None:
    model = make_talker(tmp_path / "talker", {"What?": "red"}, steps=30)
    out = tmp_path / "captions.parquet"
    made = invoke(*command(photos, "-m", model, "-o", out, "--device", "cpu", "--limit", "2", "--prompt", "What?"))
    assert made.exit_code == 0, made.output
    assert pq.read_table(out).column("caption").to_pylist() == ["red"] * 2
    assert set(pq.read_table(out).column("system").to_pylist()) == {"talker"}


def make_blip_captioner(folder: Path) -> Path:
    from transformers import AutoTokenizer, BlipConfig, BlipForConditionalGeneration, BlipImageProcessor, BlipProcessor

    folder.mkdir(parents=True)
    size = save_bert(folder)
    BlipProcessor(
        BlipImageProcessor(size={"height": 32, "width": 32}), AutoTokenizer.from_pretrained(folder)
    ).save_pretrained(folder)
    text = {**TOWER, "vocab_size": size, "max_position_embeddings": 64, "encoder_hidden_size": 32, "is_decoder": True}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    vision = {**TOWER, "image_size": 32, "patch_size": 8}
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision))
    randomise(model)
    model.save_pretrained(folder)
    return folder


def make_pair_captioner(folder: Path) -> Path:
    """Write a ViT encoder and a BERT decoder with separate processors, as in ViT-GPT2."""
    from transformers import (
        BertConfig,
        VisionEncoderDecoderConfig,
        VisionEncoderDecoderModel,
        ViTConfig,
        ViTImageProcessor,
    )  # fmt: skip

    folder.mkdir(parents=True)
    size = save_bert(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    words = BertConfig(**TOWER, vocab_size=size, max_position_embeddings=64, is_decoder=True, add_cross_attention=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ViTConfig(**TOWER, image_size=32, patch_size=8), words
    )
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 3
    model = VisionEncoderDecoderModel(config)
    randomise(model)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("make", [make_blip_captioner, make_pair_captioner])
def test_captions_do_not_depend_on_the_batch(make, photos, tmp_path) -> None:
    writer = load_writer(str(make(tmp_path / "model")), GREEDY, device="cpu")
    assert writer.prompt is None
    assert writer.identity.startswith("model@")
    images = [Image.open(photos / f"{colour}.png").convert("RGB") for colour in COLOURS[:3]]
    together = writer.write(images, [0, 0, 0])
    assert together == [writer.write([one], [0])[0] for one in images]
    drawn = load_writer(str(tmp_path / "model"), CaptioningSettings(most_tokens=6, temperature=1.0), device="cpu")
    assert drawn.write(images[:1], [5]) == drawn.write(images[:1], [5])
    assert len({drawn.write(images[:1], [seed])[0] for seed in range(6)}) > 1


def test_empty_caption_is_an_error_of_the_row(tmp_path) -> None:
    class Silent:
        identity, prompt = "silent", None

        def write(self, images, seeds):
            return [" "] * len(images)

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    made = caption_images(
        [NamedImage("a.png", tmp_path / "a.png")],
        Silent,
        tmp_path / "o.jsonl",
        GREEDY,
        CaptionRun(system="s", identity="s"),
    )
    assert (made.failed, made.reasons) == (1, ("row 0: the captioner returned no text",))


def test_invalid_settings_and_checkpoints_are_rejected(tmp_path) -> None:
    for wrong in ({"top_p": 0}, {"temperature": -1}, {"temperature": math.inf}, {"temperature": math.nan}):
        with pytest.raises(ConfigError, match="finite temperature"):
            CaptioningSettings(**wrong)
    with pytest.raises(ConfigError, match="url must begin with http"):
        endpoint_writer(Endpoint(url="ftp://x", model="m"), GREEDY)
    with pytest.raises(WeightsError):
        load_writer(str(make_tiny_clip(tmp_path / "clip")), GREEDY, device="cpu")


def test_malformed_responses_fail_only_their_row(server, tmp_path) -> None:
    (tmp_path / "one").mkdir()
    Image.new("RGB", (20, 16), "red").save(tmp_path / "one" / "red.png")
    nested = b'{"choices": ' + b"[" * 100_000
    half = b'{"choices": [{"message": {"content": "a \\ud800 dog"}}]}'
    server.replies = [(200, nested, {"Retry-After": "0"}), (200, half, {})]
    out = tmp_path / "captions.jsonl"
    done = invoke(*command(tmp_path / "one", "-m", "gpt", "--url", server.url, "-o", out))
    assert done.exit_code == 0, done.output
    assert rows_of(out)[0]["caption"] == "a \ufffd dog"
