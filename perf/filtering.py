"""Whether filtering by a score helps what is trained on the kept pairs: DataComp's question, at a size for a CPU.

    python perf/filtering.py DATA -o RESULT.json [--work FOLDER] [--images N]

DATA has train_flickr8k, train_coco and train_coco2017 as NAME.jsonl with NAME.images*.parquet, and the sets to test on:
val_flickr8k and dev_sugarcrepe. Every image has one caption, half of them spoilt in a known way. The images are
divided into two halves; a judge is trained on the true captions of each half, with a bank of its own, and judges the
pairs of the other half, so that no judge knows the pairs that it judges. Students, small dual encoders on frozen
features, are trained on the pairs that each rule keeps, all with the same number of steps, and tested on retrieval and
SugarCrepe. Judges are weaker than `mini`: heads on frozen networks, which a CPU trains in minutes. FOLDER stores
features and judges, so that a second call continues.
"""

import argparse
import hashlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from msdscore import Scorer
from msdscore.encoders.options import AlignedOptions, Identity
from msdscore.forms.evidence import Evidence
from msdscore_lab.bank.calibrate import calibrated_bank
from msdscore_lab.edits import KIND_OF, other_word, words_of
from msdscore_torch.aligned.encoder import AlignedEncoder
from msdscore_torch.aligned.heads import AlignedHeads, HeadSpec, HeadsSpec, SideDims, to_embeddings
from msdscore_torch.aligned.lite2_images import Lite2Images
from msdscore_torch.aligned.minilm import MiniLMTexts
from msdscore_torch.aligned.towers import ImageTowerSpec, TextTowerSpec, TowerOptions
from msdscore_torch.backbone import place
from msdscore_torch.tensors import Features

TRAIN, RETRIEVAL, NEAR_MISSES = ("train_flickr8k", "train_coco", "train_coco2017"), "val_flickr8k", "dev_sugarcrepe"
SIZE, GRID = 224, 7  # pixels and cells per side
CELLS, MEANS, LOCAL, GLOBAL, SENTENCE = GRID * GRID, 1752, 1536, 768, 384  # sizes of the frozen features
BATCH = 256
# Of a judge:
EPOCHS, CAPTIONS, RATE, DROPOUT, AVERAGE, DIM, HIDDEN = 12, 2, 1e-3, 0.4, 0.99, 256, 256
SEEN = 25  # cells of an image that a step uses, chosen at random
BANK_SHARE, BANK = 8, 400  # one image in this many of its half is not trained on; the first of them make the bank
BACKGROUND = 256  # images of the bank's mixtures
# Of a student:
STEPS, SEEDS, WIDTH = 500, 5, 256
KEPT = 0.5
KINDS = {"true": 0.5, "other image": 0.2, "object replaced": 0.1, "boilerplate": 0.1, "other language": 0.1}
FOREIGN = Path(__file__).with_name("foreign_captions.json")
BOILERPLATE = (
    "IMG_{n}.jpg", "Photo {n} of 120", "Stock photo, royalty free, id {n}", "Click here to enlarge the image",
    "Buy now: free shipping on orders over ${n}", "Image may contain sensitive content", "Posted by admin on May {n}",
    "DSC{n} copyright all rights reserved", "Subscribe to our newsletter for more", "Download wallpaper {n} x 1080",
    "Product {n}, see description below", "Thumbnail for version as of 2009",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """An image with the caption that the pool shows, and what was done to it."""

    name: str
    captions: tuple[str, ...]
    text: str
    kind: str

    @property
    def half(self) -> int:
        """The half of the pool, 0 or 1, by a hash of the name."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2


def main() -> None:
    """Read the arguments, run all steps, print the tables and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--work", type=Path, default=Path("filtering-work"))
    parser.add_argument("--images", type=int, help="images of the pool, for a trial")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    began = time.time()
    towers = Towers()
    pairs = read_pool(given.data, given.images)
    note(f"{len(pairs)} pairs, {dict(Counter(pair.kind for pair in pairs))}")
    images = ImageFiles(given.data, (*TRAIN, RETRIEVAL, NEAR_MISSES))
    cells, means = image_features(towers, images, [pair.name for pair in pairs], given.work / "pool")
    note("image features")
    columns = {name: np.full(len(pairs), np.nan) for name in ("msd", "match", "similarity", "length")}
    signatures = []
    for half in (0, 1):
        trained = [row for row, pair in enumerate(pairs) if pair.half == half]
        scorer = judge(towers, pairs, trained, cells, means, images, given.work / f"judge-{half}.pt")
        signatures.append(scorer.signature)
        note(f"judge {half}: {scorer.signature}")
        judged = [row for row, pair in enumerate(pairs) if pair.half != half]
        stored = given.work / f"judged-{half}.json"
        if not stored.exists():
            stored.write_text(json.dumps(list(judge_all(scorer, images, [pairs[row] for row in judged]))))
        for row, values in zip(judged, json.loads(stored.read_text()), strict=True):
            for name, value in zip(columns, values, strict=True):
                columns[name][row] = np.nan if value is None else value
        note(f"judged by {half}")
    tests = Tests(towers, images, given.data, given.work)
    texts = towers.sentences([pair.text for pair in pairs])
    kept = []
    for name, keep in rules(pairs, columns).items():
        found = [tests.run(student(means[keep], texts[keep], seed)) for seed in range(SEEDS)]
        kept.append(summary(name, [pairs[row].kind for row in keep], found))
        note(json.dumps(kept[-1]))
    result = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "minutes": round((time.time() - began) / 60), "pairs": len(pairs),
        "signatures": signatures, "separation": separation(pairs, columns), "kept": kept,
    }  # fmt: skip
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")


def summary(rule: str, kinds: list[str], found: list[dict[str, float]]) -> dict[str, object]:
    """Return the kinds of the pairs that a rule keeps, and the results of the students trained on them."""
    counts = Counter(kinds)
    shares = {kind: round(100 * counts[kind] / len(kinds), 1) for kind in KINDS}
    tests = {test: interval([each[test] for each in found]) for test in found[0]}
    return {"rule": rule, "pairs": len(kinds), "share": shares, **tests}


def judge_all(scorer: Scorer, images: "ImageFiles", pairs: list["Pair"]) -> Iterator[tuple[float | None, ...]]:
    """Yield msd, match, cosine and length of pairs."""
    for start in range(0, len(pairs), BATCH):
        some = pairs[start : start + BATCH]
        for score in scorer.score_batch([images.open(pair.name) for pair in some], [pair.text for pair in some]):
            yield score.msd, score.match, score.similarity, score.length
        note(f"{start + len(some)} of {len(pairs)} judged")


def note(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")


def read_pool(data: Path, limit: int | None) -> list[Pair]:
    """Return the pairs of the pool in an order by hash, half of them spoilt."""
    captions: dict[str, tuple[str, ...]] = {}
    for name in TRAIN:
        for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            captions[row["image"]] = tuple(text.strip() for text in row["captions"] if text.strip())
    names = sorted(
        (name for name in captions if captions[name]), key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    names = names[:limit]
    foreign = [
        text
        for texts in json.loads(FOREIGN.read_text(encoding="utf-8")).values()
        for each in texts.values()
        for text in each
    ]
    rng, pairs = Random(0), []
    for name in names:
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        own = rng.choice(captions[name])
        text: str | None = own
        if kind == "other image":
            text = rng.choice(captions[rng.choice(names)])
        elif kind == "object replaced":
            text = replaced(captions[name], rng)
        elif kind == "boilerplate":
            text = rng.choice(BOILERPLATE).format(n=rng.randrange(10, 9999))
        elif kind == "other language":
            text = rng.choice(foreign)
        pairs.append(Pair(name, captions[name], text or own, kind if text else "true"))
    return pairs


def replaced(captions: tuple[str, ...], rng: Random) -> str | None:
    """Return a caption of an image with one object replaced by one that no caption names; None if none can be."""
    known = words_of(captions)
    for caption in rng.sample(captions, len(captions)):
        if (text := other_word(KIND_OF, caption, known, rng)) is not None:
            return text
    return None


class ImageFiles:
    """The stored images of all sets, by name."""

    def __init__(self, data: Path, names: tuple[str, ...]) -> None:
        self._where: dict[str, tuple[Path, int]] = {}
        for name in names:
            for path in sorted(data.glob(f"{name}.images*.parquet")):
                stored = pq.read_table(path, columns=["file_name"])["file_name"].to_pylist()
                self._where |= {file: (path, row) for row, file in enumerate(stored)}
        self._columns: dict[Path, object] = {}

    def open(self, name: str) -> Image.Image:
        """Return a decoded image."""
        path, row = self._where[name]
        if path not in self._columns:
            self._columns[path] = pq.read_table(path, columns=["image"])["image"]
        return Image.open(io.BytesIO(self._columns[path][row].as_py()["bytes"])).convert("RGB")


class Towers:
    """The frozen networks of `mini` before any training of ours: Lite2 of ImageNet, and MiniLM."""

    def __init__(self) -> None:
        options = TowerOptions(device="cpu", dtype="float32", whole=True, long_text="window")
        self.image = Lite2Images(ImageTowerSpec(kind="mini", source="lite2", size=SIZE, grid=GRID), options)
        self.text = MiniLMTexts(
            TextTowerSpec(kind="mini", source="minilm", levels=(0, 1, 2, 6), global_levels=(2, 6), words="content"),
            options,
        )

    def see(self, images: list[Image.Image]) -> Features:
        """Features of images."""
        return self.image.features([self.image.prepare(image) for image in images])

    def sentences(self, texts: list[str]) -> np.ndarray:
        """Mean states of texts."""
        parts = [
            self.text.features(texts[start : start + BATCH]).pooled.numpy() for start in range(0, len(texts), BATCH)
        ]
        return np.concatenate(parts)


def image_features(towers: Towers, images: ImageFiles, names: list[str], stem: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return cells (a file in half precision) and means of images; continue an interrupted call."""
    shape, done = (len(names), CELLS, MEANS), stem.with_suffix(".done")
    exists = stem.with_suffix(".npy").exists()
    cells = np.lib.format.open_memmap(
        stem.with_suffix(".npy"), mode="r+" if exists else "w+", dtype=np.float16, shape=None if exists else shape
    )
    assert cells.shape == shape, f"{stem} has features of another pool"
    for start in range(int(done.read_text()) if done.exists() else 0, len(names), 64):
        found = towers.see([images.open(name) for name in names[start : start + 64]])
        cells[start : start + 64] = found.points.numpy()
        done.write_text(str(start + 64))
    # Means of the cells are those of the maps up to interpolation, and need no second file.
    means = np.stack([cells[row].mean(axis=0, dtype=np.float32) for row in range(len(names))])
    return cells, means


def judge(
    towers: Towers,
    pairs: list[Pair],
    rows: list[int],
    cells: np.ndarray,
    means: np.ndarray,
    images: ImageFiles,
    path: Path,
) -> Scorer:
    """Train the heads of a judge on the true captions of rows, fit its bank on some that it was not trained on."""
    own, bank_rows = [row for at, row in enumerate(rows) if at % BANK_SHARE], rows[::BANK_SHARE][:BANK]
    torch.manual_seed(0)
    point = HeadSpec(kind="mlp", hidden=HIDDEN, dropout=DROPOUT, norm=True, bias=False)
    pool = HeadSpec(kind="pool", hidden=192, heads=6, inner=384, dropout=0.3)
    spec = HeadsSpec(dim=DIM, pool="own", image=point, text=point, global_dim=DIM, global_image=point, global_text=pool)
    heads = AlignedHeads(spec, SideDims(MEANS, MEANS), SideDims(LOCAL, GLOBAL, SENTENCE))
    if path.exists():
        heads.load_state_dict(torch.load(path, weights_only=True))
    else:
        heads.load_state_dict(trained(heads, towers, pairs, own, cells, means))
        torch.save(heads.state_dict(), path)
    heads.eval().requires_grad_(False)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in heads.state_dict().values())).hexdigest()[:8]
    identity = Identity(
        f"judge-{digest}", f"judge@{digest}", place("cpu", "float32"), AlignedOptions(), languages=("en",)
    )
    encoder = AlignedEncoder(identity, image=towers.image, text=towers.text, heads=heads, bank=None, recommended=None)
    bank = calibrated_bank(
        encoder, Evidence(), [images.open(pairs[row].name) for row in bank_rows],
        [pairs[row].captions for row in bank_rows], background=BACKGROUND,
        others=[pairs[row].captions[0] for row in own],
    )  # fmt: skip
    note(f"bank of {len(bank_rows)} images: {bank.quality}")
    return Scorer(encoder, "evidence", bank=bank)


def trained(
    heads: AlignedHeads, towers: Towers, pairs: list[Pair], rows: list[int], cells: np.ndarray, means: np.ndarray
) -> dict[str, torch.Tensor]:
    """Return averaged weights after training with InfoNCE on pooled vectors, and from tokens to their best cells."""
    scales = nn.Parameter(torch.tensor([20.0, 10.0]).log())
    optimizer = torch.optim.AdamW([*heads.parameters(), scales], lr=RATE, weight_decay=0.05)
    steps = EPOCHS * (len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    average = {name: value.clone() for name, value in heads.state_dict().items()}
    rng, step = np.random.default_rng(0), 0
    read = {}  # features of texts, at most CAPTIONS for each image
    for epoch in range(EPOCHS):
        order = rng.permutation(rows)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = np.sort(order[start : start + BATCH])
            texts = [pairs[row].captions[epoch % CAPTIONS % len(pairs[row].captions)] for row in chosen]
            key = epoch % CAPTIONS
            text = stored_texts(towers, read, [(int(row), key) for row in chosen], texts)
            seen = rng.permuted(np.tile(np.arange(CELLS), (len(chosen), 1)), axis=1)[:, :SEEN]
            points = torch.from_numpy(cells[chosen[:, None], seen].astype(np.float32))
            whole = torch.from_numpy(means[chosen][:, None])
            every = torch.ones(len(chosen), SEEN, dtype=torch.bool)
            image = Features(points, every, whole=Features(whole, every[:, :1]))
            one, two = to_embeddings(heads.states("image", image)), to_embeddings(heads.states("text", text))
            target = torch.arange(len(chosen))
            logits = scales[0].exp() * one.pooled @ two.pooled.T
            best = torch.einsum("ipd,ctd->ictp", one.points, two.points).amax(dim=3)
            local = scales[1].exp() * (best * two.mask).sum(2) / two.mask.sum(1).clamp_min(1)
            loss = sum(0.5 * (cross_entropy(each, target) + cross_entropy(each.T, target)) for each in (logits, local))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            for name, value in heads.state_dict().items():
                average[name].lerp_(value, 1 - min(AVERAGE, step / (step + 10)))
            if step % 20 == 0:
                note(f"step {step} of {steps}: loss {loss.item():.3f}")
    return average


def stored_texts(towers: Towers, read: dict, keys: list[tuple[int, int]], texts: list[str]) -> Features:
    """Return features of texts, each computed once and stored without padding in half precision."""
    fresh = [number for number, key in enumerate(keys) if key not in read]
    if fresh:
        found = towers.text.features([texts[number] for number in fresh])
        for at, number in enumerate(fresh):
            local, whole = found.points[at][found.mask[at]], found.whole.points[at][found.whole.mask[at]]
            read[keys[number]] = (local.half(), whole.half())
    sides = [padded([read[key][side] for key in keys]) for side in (0, 1)]
    return Features(*sides[0], whole=Features(*sides[1]))


def padded(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors of several lengths as one tensor with its mask."""
    lengths = torch.tensor([len(part) for part in parts])
    vectors = nn.utils.rnn.pad_sequence([part.float() for part in parts], batch_first=True)
    return vectors, torch.arange(vectors.shape[1]) < lengths[:, None]


def rules(pairs: list[Pair], columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows that each rule keeps; rows without a number come last."""
    count, rows = round(KEPT * len(pairs)), np.arange(len(pairs))
    rng = np.random.default_rng(1)
    best = {
        f"best half by {name}": np.sort(np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:count])
        for name, values in columns.items()
    }
    sure = {"match of at least 0.5": rows[np.nan_to_num(columns["match"]) >= 0.5]}
    true = rows[[pair.kind == "true" for pair in pairs]]
    return {
        "all pairs": rows,
        "a random half": np.sort(rng.permutation(rows)[:count]),
        **best,
        **sure,
        "the true ones (ideal)": true,
    }


def separation(pairs: list[Pair], columns: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return, for each column and kind, the probability in percent that a true pair is above a spoilt one."""
    found: dict[str, dict[str, float]] = {}
    for name, values in columns.items():
        filled = np.nan_to_num(values, nan=-1e9)
        true = np.sort(filled[[pair.kind == "true" for pair in pairs]])
        found[name] = {}
        for kind in KINDS:
            other = filled[[pair.kind == kind for pair in pairs]]
            below = (np.searchsorted(true, other, "left") + np.searchsorted(true, other, "right")) / 2
            found[name][kind] = round(100 * float(1 - below.mean() / len(true)), 1)
    return found


class Student(nn.Module):
    """A dual encoder: an MLP on mean image features, another on mean states of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = (
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, WIDTH))
            for size in (MEANS, SENTENCE)
        )
        self.scale = nn.Parameter(torch.tensor(20.0).log())


def student(images: np.ndarray, texts: np.ndarray, seed: int) -> Student:
    """Train a student on pairs."""
    torch.manual_seed(seed)
    model, rng = Student(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=STEPS, pct_start=0.1)
    order: list[int] = []
    for _ in range(STEPS):
        if len(order) < BATCH:
            order = rng.permutation(len(images)).tolist()
        chosen, order = order[:BATCH], order[BATCH:]
        one = normalize(model.image(torch.from_numpy(images[chosen])), dim=1)
        two = normalize(model.text(torch.from_numpy(texts[chosen])), dim=1)
        logits, target = model.scale.exp() * one @ two.T, torch.arange(len(chosen))
        loss = cross_entropy(logits, target) + cross_entropy(logits.T, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


class Tests:
    """Retrieval on the validation images of Flickr8k, and SugarCrepe's development half."""

    def __init__(self, towers: Towers, images: ImageFiles, data: Path, work: Path) -> None:
        rows = [json.loads(line) for line in (data / f"{RETRIEVAL}.jsonl").read_text(encoding="utf-8").splitlines()]
        self._means = image_features(towers, images, [row["image"] for row in rows], work / "retrieval")[1]
        self._owner = np.repeat(np.arange(len(rows)), [len(row["captions"]) for row in rows])
        self._texts = towers.sentences([text for row in rows for text in row["captions"]])
        pairs = [json.loads(line) for line in (data / f"{NEAR_MISSES}.jsonl").read_text(encoding="utf-8").splitlines()]
        names = list(dict.fromkeys(row["image"] for row in pairs))
        means = image_features(towers, images, names, work / "near-misses")[1]
        self._near = means[[names.index(row["image"]) for row in pairs]]
        self._sides = [towers.sentences([row[side] for row in pairs]) for side in ("caption", "negative_caption")]
        self._subsets = np.array([row["subset"] for row in pairs])

    @torch.no_grad()
    def run(self, model: Student) -> dict[str, float]:
        """Return R@1 of both directions, and the macro mean of SugarCrepe's subsets, in percent."""
        see = lambda means: normalize(model.image(torch.from_numpy(means)), dim=1).numpy()  # noqa: E731
        read = lambda texts: normalize(model.text(torch.from_numpy(texts)), dim=1).numpy()  # noqa: E731
        products, near = see(self._means) @ read(self._texts).T, see(self._near)
        right = [(near * read(side)).sum(1) for side in self._sides]
        won = right[0] > right[1]
        return {
            "text to image R@1": 100 * float((products.argmax(0) == self._owner).mean()),
            "image to text R@1": 100 * float((self._owner[products.argmax(1)] == np.arange(len(products))).mean()),
            "SugarCrepe": 100
            * float(np.mean([won[self._subsets == name].mean() for name in np.unique(self._subsets)])),
        }


def interval(values: list[float]) -> list[float]:
    """Return the mean over seeds and half of its 95 % interval by Student's t."""
    t = {3: 4.303, 5: 2.776}[len(values)]
    return [round(float(np.mean(values)), 1), round(t * float(np.std(values, ddof=1)) / len(values) ** 0.5, 1)]


if __name__ == "__main__":
    main()
