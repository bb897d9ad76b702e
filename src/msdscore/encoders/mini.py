"""`mini` on ONNX Runtime: NumPy arrays in and out, without torch.

The graphs contain networks and heads. Tokenising, windows of long captions and the choice of content words are done
here, as the torch networks do (`aligned.encoder`), which serve other devices and dtypes from the same weights.
"""

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore import threads
from msdscore.core.arrays import gpu_count, torch_part
from msdscore.core.embeddings import unit
from msdscore.encoders.banks import read_bank, uncalibrated
from msdscore.encoders.base import Embeddings, Encoder, Prepared, TokenLayout, with_text_warnings
from msdscore.encoders.checkpoints import (
    BANK,
    META,
    Checkpoint,
    listed_files,
    local_checkpoint,
    locate,
    verify_sums,
)
from msdscore.encoders.options import AlignedOptions, Identity, read_options
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore.encoders.tokens import TextBatch, TextSettings, WordPiece, WordTokens, join_windows, pack, tokenise_all
from msdscore.errors import ConfigError, WeightsError, install_line, missing_extra
from msdscore.text.words import content_tokens

GRAPHS = ("image.onnx", "text.onnx")  # exported from the networks, and part of the signature
FUSED_GRAPHS = ("image.fused.onnx", "text.fused.onnx")  # the same functions with fewer operators, which are used
VOCABULARY = "vocab.txt"
CLS, SEP, PAD, UNKNOWN, CONTEXT = 101, 102, 0, 100, 512
_IMAGES = 2  # at a time: more need more memory and are not faster
_MOST_SENTENCES = 1 << 14  # sentence vectors that are cached

Floats = npt.NDArray[np.float32]


class Graph:
    """One graph in a session of ONNX Runtime, opened at its first use in each process; thread-safe.

    A session has a fixed number of threads: if `threads.use` has set fewer since, another session is opened (90 MB).
    It is pickled as its path. A child of `fork` opens a new session, since it has none of the threads of its parent's.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._threads = path, threads.count()
        self._sessions = dict[int, Any]()  # by number of threads
        self._lock, self._starting = Lock(), False
        _forget_after_fork(self)

    def __getstate__(self) -> tuple[Path, int]:
        return self.path, self._threads

    def __setstate__(self, state: tuple[Path, int]) -> None:
        self.path, self._threads = state
        self._sessions, self._lock, self._starting = {}, Lock(), False
        _forget_after_fork(self)

    def run(self, **inputs: npt.NDArray[Any]) -> list[Floats]:
        """Outputs of the graph."""
        outputs: list[Floats] = self.open().run(None, inputs)
        return outputs

    def open(self) -> Any:
        """The session; a damaged graph raises `WeightsError`."""
        count = min(self._threads, threads.count())
        with self._lock:
            if count not in self._sessions:
                self._sessions[count] = _open(self.path, count)
            return self._sessions[count]

    def open_soon(self) -> None:
        """Start to open the session in another thread, unless that was done before; `run` waits for it."""
        if not self._starting:
            self._starting = True
            Thread(target=self._try_open, name=f"open {self.path.name}").start()

    def _try_open(self) -> None:
        with suppress(WeightsError):  # raised again by the call that needs the session
            self.open()


def _open(path: Path, count: int) -> Any:
    # It would report its use to its makers, from a thread for which a forked process waits forever at its exit.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as runtime

    runtime.disable_telemetry_events()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = count, 1
    # Spinning threads would take the cores of decoding, and of other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_mem_pattern = False  # a plan per shape of the input: captions have too many shapes
    # Planning shared buffers takes a fifth of the time to open a graph, and saves neither time nor memory of a run.
    options.enable_mem_reuse = False
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes derive from RuntimeError or Exception, by version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(
            f"{path}: cannot be loaded ({reason}); reinstall it with: {install_line('msdscore-mini')}"
        ) from error


_graphs: "weakref.WeakSet[Graph]" = weakref.WeakSet()


def _forget_after_fork(graph: Graph) -> None:
    _graphs.add(graph)
    _register_at_fork()


@cache
def _register_at_fork() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for graph in _graphs:
        for session in graph._sessions.values():
            # Never destroyed: that would wait forever for threads that exist only in the parent.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        graph._sessions, graph._lock, graph._starting = {}, Lock(), False


class _Texts(NamedTuple):
    """Vectors of captions: content words, pooled, and sentence vectors."""

    embeddings: Embeddings
    sentences: Floats


class OnnxEncoder:
    """Patches, content words and pooled vectors of `mini`; each of the two graphs is opened when it is needed."""

    device = "cpu"
    precision = "float32"

    def __init__(self, identity: Identity, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        folder = checkpoint.folder
        self.name, self.signature, self._english = identity.name, identity.signature, identity.languages == ("en",)
        bank = read_bank(folder / BANK, digest=_bank_digest(checkpoint))[0] if (folder / BANK).is_file() else None
        self.bank = uncalibrated(bank, is_default=identity.options.has_default_vectors)
        self.recommended: Mapping[str, Any] | None = config.get("recommended")
        side, self._grid = int(config["image"]["size"]), int(config["image"]["grid"])
        # The graph normalises bytes; the image is squashed, so that nothing is cropped.
        self.preprocessing = identity.options.applied(Preprocessing(resize=(side, side), crop=None))
        self.tokenizer = WordPiece.read(folder / VOCABULARY)
        self._words: dict[str, WordTokens] = {}  # those seen so far
        self._text_settings = TextSettings(CONTEXT, (CLS,), (SEP,), PAD, identity.options.long_text, unknown=UNKNOWN)
        self._only_content = config["text"]["words"] == "content"
        self._images, self._texts = (Graph(folder / name) for name in FUSED_GRAPHS)
        self._sentences: dict[str, Floats] = {}

    def prepare(self, image: Image) -> Prepared:
        """Resize an image to the square that the network takes."""
        self._images.open_soon()  # while captions are encoded, which opens the other graph
        return prepare_image(image, self.preprocessing)

    @property
    def sendable_prepare(self) -> Callable[[Image], Prepared]:
        """`prepare` without the sessions, for other processes."""
        return partial(prepare_image, steps=self.preprocessing)

    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` has one `PatchLayout` per item."""
        if not images:
            raise ConfigError("expected at least one image to encode, got none")
        pixels = [np.asarray(image.pixels).transpose(1, 2, 0) for image in images]
        results = [
            self._images.run(pixels=np.stack(pixels[start : start + _IMAGES]))
            for start in range(0, len(pixels), _IMAGES)
        ]
        points, pooled = (np.concatenate(parts) for parts in zip(*results, strict=True))
        cell = pixels[0].shape[0] / self._grid
        layout = tuple(patch_layout(image.view, (self._grid, self._grid), (cell, cell)) for image in images)
        return Embeddings(points, np.ones(points.shape[:2], dtype=bool), pooled, layout, (True,) * len(images))

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Content words and pooled vectors; `layout` has one `TokenLayout` per item."""
        if not texts:
            raise ConfigError("expected at least one caption to encode, got none")
        return with_text_warnings(self._read(texts).embeddings, texts, english=self._english)

    def encode_sentences(self, texts: Sequence[str]) -> Floats:
        """Sentence vectors, for which MiniLM was trained; those of the latest texts are cached."""
        known = {text: vector for text in texts if (vector := self._sentences.get(text)) is not None}
        if fresh := [text for text in dict.fromkeys(texts) if text not in known]:
            known |= dict(zip(fresh, self._read(fresh).sentences, strict=True))
        return np.stack([known[text] for text in texts])

    def _read(self, texts: Sequence[str]) -> _Texts:
        batch = pack(tokenise_all(self.tokenizer, texts, self._words), self._text_settings)
        chosen, layout = self._chosen(texts, batch)
        width, places = batch.ids.shape[1], list[npt.NDArray[np.int64]]()
        for row, numbers in enumerate(chosen):
            index = list(numbers)
            places.append(batch.window_of[row, index] * width + batch.position[row, index])
        positions = np.concatenate(places).astype(np.int64)
        # The graph needs at least one position; an unused vector is dropped.
        points, pooled, sentences = self._texts.run(
            ids=batch.ids, mask=batch.attention, positions=positions if len(positions) else np.zeros(1, np.int64)
        )
        lengths = np.array([len(numbers) for numbers in chosen])
        mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
        padded = np.zeros((*mask.shape, points.shape[-1]), dtype=np.float32)
        padded[mask] = points[: len(positions)]
        # One vector per member, of which every one is the mean over the caption's windows.
        members = [join_windows(pooled[:, number], batch.windows) for number in range(pooled.shape[1])]
        vectors = join_windows(sentences, batch.windows)
        if len(self._sentences) > _MOST_SENTENCES:
            self._sentences = {}
        self._sentences.update(zip(texts, vectors, strict=True))
        filled = tuple((lengths > 0).tolist())
        return _Texts(Embeddings(padded, mask, unit(np.concatenate(members, axis=-1)), layout, filled), vectors)

    def _chosen(self, texts: Sequence[str], batch: TextBatch) -> tuple[list[Sequence[int]], tuple[TokenLayout, ...]]:
        """The tokens of each caption that have vectors, and the layouts of only these."""
        if not self._only_content:
            return [range(len(layout.spans)) for layout in batch.layout], batch.layout
        chosen = [content_tokens(text, layout.spans) for text, layout in zip(texts, batch.layout, strict=True)]
        fewer = tuple(
            replace(
                layout,
                spans=tuple(layout.spans[number] for number in numbers),
                omitted=len(layout.spans) - len(numbers),
            )
            for layout, numbers in zip(batch.layout, chosen, strict=True)
        )
        return list(chosen), fewer


def _bank_digest(checkpoint: Checkpoint) -> str:
    """The digest of an encoder's bank, if both files are listed and therefore belong together."""
    if not listed_files(checkpoint.folder).keys() >= {BANK, META}:
        return ""
    return str(checkpoint.read_json(META).get("bank", ""))


class _Placement(NamedTuple):
    """Device and dtype of vectors, as in the signature."""

    device: str = "cpu"
    dtype_name: str = "float32"


def load_mini(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> Encoder:
    """Load an aligned encoder: on ONNX Runtime if it has graphs and computes on a CPU, otherwise with torch.

    Raises:
        WeightsError: files are missing or damaged.
        MissingExtraError: another device or dtype is requested, and torch is not installed.
    """
    chosen = read_options(AlignedOptions, options)
    if revision is not None and source.startswith("package:"):
        raise ConfigError(f"{name} is an installed package and has no revisions; omit revision")
    on_cpu = dtype in ("auto", "float32") and (device == "cpu" or (device == "auto" and not gpu_count()))
    on_device = "device" in (chosen.jpeg, chosen.resize)
    needs_torch = chosen.runtime == "torch" or chosen.image_backbone or chosen.text_backbone or on_device
    checkpoint = local_checkpoint(locate(source)) if on_cpu and not needs_torch else None
    # Only listed graphs are known to belong to the other files of their folder.
    if checkpoint is not None and set(listed_files(checkpoint.folder)).issuperset(FUSED_GRAPHS):
        checkpoint = checkpoint.marked()
        verify_sums(checkpoint.folder)
        config = checkpoint.read_json("config.json")
        languages = ("en",) if config["text"].get("kind") == "mini" else ()
        identity = Identity(name, checkpoint.signed(name), _Placement(), chosen, languages=languages)
        return OnnxEncoder(identity, checkpoint, config)
    if chosen.runtime == "onnx":
        raise ConfigError(f"runtime='onnx' needs device='cpu', dtype='float32' and graphs; omit it to load {name}")
    if find_spec("msdscore_torch") is None:
        raise missing_extra(f"torch is needed for device={device!r} and dtype={dtype!r}", "msdscore[torch]")
    load_aligned = torch_part("aligned.encoder").load_aligned
    encoder: Encoder = load_aligned(source, name=name, revision=revision, device=device, dtype=dtype, **options)
    return encoder
