"""From files to scores: the whole way against the encoder's own peak, the decode rate, plain cosine and torchmetrics.

python perf/end_to_end.py                    on a GPU: CLIP ViT-L/14 in bfloat16 with random weights, some 3 minutes
python perf/end_to_end.py --device cpu       a small CLIP on the CPU

Pictures are JPEG files of 640 x 480 pixels made on the spot, captions have 8 to 14 words. Every figure is in pairs per
second unless it says otherwise. With `decoders`, other processes decode; `own_ms` is the processor time, over all
threads, of the process that feeds the GPU.
"""

import argparse
import io
import json
import random
import tarfile
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizerFast

from msdscore.core.sphere import unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.registry import load_encoder
from msdscore.io.images import open_image
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Request, score_requests

WORDS = [
    "a", "the", "dog", "cat", "man", "woman", "child", "horse", "boat", "train", "red", "blue", "green",
    "small", "large", "old", "wooden", "white", "black", "on", "under", "near", "beside", "runs", "stands",
    "sits", "sleeps", "jumps", "holds", "rides", "eats", "grass", "street", "beach", "table", "house", "tree",
    "river", "field", "snow", "window", "chair", "ball", "hat", "umbrella", "bicycle", "kite", "plate", "cake",
    "bench", "bridge", "clock", "with", "and", "two", "three", "in", "front", "of", "behind",
]  # fmt: skip
LARGE = {
    "vision": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "patch_size": 14, "image_size": 224, "projection_dim": 768,
    },
    "text": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "projection_dim": 768,
    },
}  # fmt: skip
SMALL = {
    "vision": {**LARGE["vision"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
               "num_attention_heads": 4, "patch_size": 32, "projection_dim": 256},
    "text": {**LARGE["text"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
             "num_attention_heads": 4, "projection_dim": 256},
}  # fmt: skip


TAR_ROWS = 512
WORKERS = (4, 8)  # processes that share the GPU


def make_tokenizer(folder):
    """A CLIP tokenizer in which every word of the captions is one token, with its vocabulary's size."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = [*letters, *(f"{letter}</w>" for letter in letters)], []
    for word in WORDS:
        built = word[0]
        for number, letter in enumerate(word[1:], start=2):
            more = letter + ("</w>" if number == len(word) else "")
            merges.append(f"{built} {more}")
            built += more
            pieces.append(built)
    pieces = [*dict.fromkeys(pieces), "<|startoftext|>", "<|endoftext|>"]
    names = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(names), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *dict.fromkeys(merges)]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}), encoding="utf-8"
    )
    CLIPTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return len(pieces)


def make_checkpoint(folder, device, sizes):
    """A CLIP checkpoint with random weights in bfloat16, as a folder."""
    folder.mkdir()
    size = make_tokenizer(folder)
    ids = {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    text = {**sizes["text"], **ids, "max_position_embeddings": 77}
    config = CLIPConfig(vision_config=sizes["vision"], text_config=text, projection_dim=sizes["text"]["projection_dim"])
    torch.manual_seed(0)
    with torch.device(device):
        model = CLIPModel(config).to(torch.bfloat16)
        for parameter in model.parameters():
            if parameter.ndim > 1:  # the library's own start is so small that all tokens look alike
                torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    edge = {"height": 224, "width": 224}
    CLIPImageProcessor(size={"shortest_edge": 224}, crop_size=edge).save_pretrained(folder)


def photograph(seed):
    """The JPEG bytes of a picture with smooth areas, edges and noise: about as many as a photograph has."""
    noise = np.random.RandomState(seed)
    coarse = Image.fromarray(noise.randint(0, 255, (12, 16, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
    blocks = Image.fromarray(noise.randint(0, 255, (24, 32, 3), dtype=np.uint8)).resize((640, 480), Image.NEAREST)
    grain = noise.normal(0, 6, (480, 640, 3))
    mixed = 0.6 * np.asarray(coarse) + 0.4 * np.asarray(blocks) + grain
    kept = io.BytesIO()
    Image.fromarray(mixed.clip(0, 255).astype(np.uint8)).save(kept, "JPEG", quality=85)
    return kept.getvalue()


def make_rows(folder, count):
    """Pictures, captions, a file of rows, and the same in tars."""
    with ProcessPoolExecutor(cpu_count()) as pool:
        contents = list(pool.map(photograph, range(min(count, 128))))
    draw = random.Random(0)
    captions = [" ".join(draw.choices(WORDS, k=draw.randint(8, 14))) for _ in range(count)]
    (folder / "pictures").mkdir()
    rows = []
    for number, caption in enumerate(captions):
        (folder / "pictures" / f"{number:06d}.jpg").write_bytes(contents[number % len(contents)])
        rows.append(json.dumps({"image": f"pictures/{number:06d}.jpg", "caption": caption}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for first in range(0, count, TAR_ROWS):
        with tarfile.open(folder / f"{first // TAR_ROWS:05d}.tar", "w") as tar:
            for number in range(first, min(first + TAR_ROWS, count)):
                parts = {"jpg": contents[number % len(contents)], "txt": captions[number].encode()}
                for suffix, content in parts.items():
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return [folder / "pictures" / f"{number:06d}.jpg" for number in range(count)], captions


class Pooled:
    """The same encoder for cosine similarity alone: no patch and no token is projected or normalised."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    @torch.no_grad()
    def encode_images(self, images):
        from msdscore.encoders.vision.preprocessing import stack_pixels

        parts, model = self._encoder._parts, self._encoder._parts.model
        pixels = stack_pixels(images, parts.preprocessing, self.device).to(self._encoder.precision)
        return _pooled(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output))

    @torch.no_grad()
    def encode_texts(self, texts):
        from msdscore.encoders.text.tokens import pack, tokenise

        parts, model = self._encoder._parts, self._encoder._parts.model
        batch = pack([tokenise(parts.backend, text) for text in texts], parts.reading)
        attention = batch.attention.to(self.device).long()
        states = model.text_model(input_ids=batch.ids.to(self.device), attention_mask=attention)
        return _pooled(model.text_projection(states.pooler_output))


def _pooled(vectors):
    pooled = unit(vectors)
    mask = torch.ones(len(pooled), 1, dtype=torch.bool, device=pooled.device)
    return Embeddings(pooled.unsqueeze(1), mask, pooled, (None,) * len(pooled))


class Cosine(Pipeline):
    """The same pipeline that compares nothing but pooled vectors."""

    def score(self, decoded, captions, owner, *, worst=0):
        images, texts = self.embed_images(decoded), self.embed_texts(captions)
        rows = torch.tensor([texts.row(item) for item in range(len(owner))], device=self.encoder.device)
        return (images.vectors.pooled[list(owner)] * texts.vectors.pooled[rows]).sum(dim=1).tolist()


def seconds(work, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(encoder, batch, device, repeats):
    """Pairs per second of the towers and projections alone, on pixels and ids that lie on the device."""
    model = encoder._parts.model
    pixels = torch.randn(batch, 3, 224, 224, device=device, dtype=encoder.precision)
    ids = torch.randint(0, 500, (batch, 13), device=device)
    ids[:, -1] = encoder._parts.reading.suffix[0]

    @torch.no_grad()
    def encode():
        seen, read = model.vision_model(pixel_values=pixels), model.text_model(input_ids=ids)
        model.visual_projection(seen.last_hidden_state), model.text_projection(read.last_hidden_state)

    encode()
    return batch * repeats / seconds(lambda: [encode() for _ in range(repeats)], device)


def requests(sources, captions, size):
    for first in range(0, len(sources), size):
        some = captions[first : first + size]
        yield Request(sources[first : first + size], some, range(len(some)))


def stream(pipeline, sources, captions):
    return sum(len(found) for found in score_requests(pipeline, requests(sources, captions, pipeline.batch_size)))


def run_file(pipeline, folder, output):
    """`msdscore score rows.jsonl -o scores.parquet`, less the loading of the encoder."""
    from msdscore.engine.local import RunOptions, score_rows
    from msdscore.io.inputs.rows import open_rows

    with open_rows(str(folder / "rows.jsonl")) as rows:
        made = score_rows(pipeline, rows, output, RunOptions(overwrite=True))
    assert made.failed == 0, made.reasons
    return made.rows


def run_tars(pipeline, folder, output):
    """`msdscore score *.tar -o DIR`, less the loading of the encoder."""
    from msdscore.engine.shard import score_shard

    output.mkdir(exist_ok=True)
    tars = sorted(folder.glob("*.tar"))
    results = [score_shard(pipeline, tar, output / f"{tar.stem}.parquet") for tar in tars]
    assert not sum(result.failed for result in results)
    return sum(result.rows for result in results)


def workers_rate(folder, output, count):
    """`msdscore score *.tar -o DIR --workers N` from where every worker has finished a shard on, in rows per second."""
    from msdscore.engine.jobs import ShardJob
    from msdscore.engine.shard import ShardOptions
    from msdscore.engine.workers import score_on_workers
    from msdscore.scoring.spec import ScorerSpec

    output.mkdir()
    tars = sorted(folder.glob("*.tar"))
    jobs = [ShardJob(str(tar), str(output / f"{turn}-{tar.stem}.parquet")) for turn in range(3) for tar in tars]
    spec, arrived = ScorerSpec(encoder=str(folder / "clip"), dtype="bfloat16"), []
    for result in score_on_workers(spec, jobs, ShardOptions(), workers=count):
        assert result.error is None, result.error
        arrived.append((time.perf_counter(), result.rows))
    return sum(rows for _, rows in arrived[count:]) / (arrived[-1][0] - arrived[count - 1][0])


def decode_rates(pipeline, paths):
    """Pictures per second of reading, decoding and preparing: by the threads that a run uses, and by processes."""
    with ThreadPoolExecutor(cpu_count()) as pool:
        threads = len(paths) / seconds(lambda: pipeline.decode(paths, pool=pool), "cpu")
    prepare = partial(_decode, steps=pipeline.encoder._parts.preprocessing)
    with ProcessPoolExecutor(cpu_count()) as pool:
        list(pool.map(prepare, paths[:64], chunksize=4))
        processes = len(paths) / seconds(lambda: list(pool.map(prepare, paths, chunksize=16)), "cpu")
    return threads, processes


def _decode(path, steps):
    from msdscore.encoders.vision.preprocessing import prepare_picture

    torch.set_num_threads(1)
    prepare_picture(open_image(path), steps)  # not sent back: that would be another work


def torchmetrics_rate(folder, paths, captions, *, device, batch=64):
    """Per-pair CLIPScore by torchmetrics on the same weights in the same precision, decoded by as many threads."""
    from torchmetrics.functional.multimodal.clip_score import _clip_score_update
    from transformers import CLIPProcessor

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = CLIPModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    processor = CLIPProcessor.from_pretrained(folder)

    class Adapted:
        """What torchmetrics asks of a model, with the tensors that it expects of older libraries."""

        config = model.config

        def to(self, device):
            return self

        def get_image_features(self, pixels):
            return model.visual_projection(model.vision_model(pixel_values=pixels.to(dtype)).pooler_output)

        def get_text_features(self, ids, attention):
            read = model.text_model(input_ids=ids, attention_mask=attention)
            return model.text_projection(read.pooler_output)

    def tensor(path):
        return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).to(device)

    @torch.no_grad()
    def score(paths, captions):
        scores = []
        with ThreadPoolExecutor(cpu_count()) as pool:
            for first in range(0, len(paths), batch):
                pictures = list(pool.map(tensor, paths[first : first + batch]))
                found, _ = _clip_score_update(pictures, captions[first : first + batch], Adapted(), processor)
                scores += found.tolist()
        return scores

    score(paths[:batch], captions[:batch])
    return len(paths) / seconds(lambda: score(paths, captions), device)


def measure(folder, device, count, said):
    sizes = LARGE if device == "cuda" else SMALL
    make_checkpoint(folder / "clip", device, sizes)
    paths, captions = make_rows(folder, count)
    dtype = "bfloat16" if device == "cuda" else "float32"
    encoder = load_encoder(str(folder / "clip"), device=device, dtype=dtype)
    pipeline = Pipeline(encoder)
    cosine = Cosine(Pooled(encoder))
    # Rates below are of warm pipelines: kernels compiled, libraries initialised.
    some = max(2 * pipeline.batch_size, 64)
    for one in (pipeline, cosine):
        stream(one, paths[:some], captions[:some])
    if device == "cuda":
        said("encoder_peak", peak(encoder, 256, device, 8))
        said("encoder_peak_batch_1024", peak(encoder, 1024, device, 2))
    else:
        said("encoder_peak", peak(encoder, 32, device, 4))
    few = paths[: max(64, count // 4)]
    threads, processes = decode_rates(pipeline, few)
    said("decode_threads", threads)
    said("decode_processes", processes)
    for name, one in (("cosine", cosine), ("msd", pipeline)):
        taken = time.process_time()
        said(f"stream_{name}", max(count / seconds(lambda: stream(one, paths, captions), device) for _ in range(2)))  # noqa: B023
        said(f"own_ms_per_pair_{name}_threads", 1e3 * (time.process_time() - taken) / count / 2)
    for name, one in (("cosine", cosine), ("msd", pipeline)):
        one.decoders = cpu_count()
        taken = time.process_time()
        said(f"stream_{name}_decoders", count / seconds(lambda: stream(one, paths, captions), device))  # noqa: B023
        said(f"own_ms_per_pair_{name}", 1e3 * (time.process_time() - taken) / count)
    for name, work in (("files_to_parquet", run_file), ("tars_to_parquet", run_tars)):
        try:
            said(name, count / seconds(lambda: work(pipeline, folder, folder / f"{name}.parquet"), device))  # noqa: B023
        except ImportError as error:
            said(name, f"left out: {error}")
    if device == "cuda":
        for number in WORKERS:
            try:
                said(f"tars_{number}_workers", workers_rate(folder, folder / f"by-{number}", number))
            except ImportError as error:
                said(f"tars_{number}_workers", f"left out: {error}")
    try:
        part = max(64, count // 16)
        said("torchmetrics", torchmetrics_rate(folder / "clip", paths[:part], captions[:part], device=device))
    except ImportError as error:
        said("torchmetrics", f"left out: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = arguments.pictures or (8192 if arguments.device == "cuda" else 128)
    found, begun = {}, time.perf_counter()

    def said(name, value):
        found[name] = value
        shown = value if isinstance(value, str) else f"{value:10.1f}"
        print(f"{time.perf_counter() - begun:6.1f} s  {name:<26} {shown}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.device, count, said)
    limit = min(found["encoder_peak"], found["decode_processes"])
    what = "the encoder's peak" if limit == found["encoder_peak"] else "the decode rate"
    for name in [one for one in found if one.startswith(("stream", "files", "tars"))]:
        if not isinstance(found[name], str):
            print(f"{name}: {100 * found[name] / limit:.1f} % of {what}")
    print(f"MSD against cosine: {100 * (found['stream_cosine'] / found['stream_msd'] - 1):+.1f} % time")
    if not isinstance(found["torchmetrics"], str):
        print(f"against torchmetrics' CLIPScore: {found['stream_msd'] / found['torchmetrics']:.1f} times as fast")


if __name__ == "__main__":
    main()
