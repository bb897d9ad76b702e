"""The text tower of `mini`: MiniLM-L6 as a plain BERT, with the hidden states of every layer.

Implemented here for the same reason as `lite2`: it loads without a model library, and its results are stable. A test
compares it with transformers' BertModel on the same weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from msdscore.core.arrays import Bool, Float, Int
from msdscore.encoders.checkpoints import locate, verify_sums
from msdscore.encoders.tokens import TextSettings, WordPiece, WordTokens, join_windows, pack, tokenise_all
from msdscore.errors import WeightsError
from msdscore_torch.aligned.towers import (
    TextTowerSpec,
    TowerOptions,
    keep_content,
    mean_state,
    take_level,
    take_levels,
)
from msdscore_torch.backbone import as_tensors, place
from msdscore_torch.gpu.device import sent
from msdscore_torch.hub import verify_files
from msdscore_torch.tensors import Features, read_tensors, widened
from msdscore_torch.tokenizers import unpack_tokens

PACKAGE = "package:msdscore_mini"


def base_file(name: str) -> Path:
    """Return a verified file of the installed weights, such as the frozen networks.

    Raises:
        WeightsError: the package is not installed, or the file is damaged.
    """
    path = Path(locate(f"{PACKAGE}/{name}"))
    verify_sums(path.parent, only=(name,))
    return path


BASE, VOCABULARY_FILE = "minilm.safetensors", "vocab.txt"
# SHA-256 of the float32 checkpoint that the weights are rounded from; heads that were trained on it may be used.
ORIGINAL = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CLS, SEP, PAD, UNKNOWN = 101, 102, 0, 100
_MOST_SENTENCES = 1 << 14  # sentence vectors that are cached

VOCABULARY, WIDTH, INNER, HEADS, LAYERS, CONTEXT = 30522, 384, 1536, 12, 6, 512
States = list[Float[Tensor, "batch positions 384"]]


class Affine(nn.Module):
    """A linear layer with weights of shape (inputs, outputs), which CPU libraries multiply up to a third faster."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The projected states."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Layer(nn.Module):
    """Self-attention and a feed-forward step, each added and normalised after."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.mix = Affine(WIDTH, 3 * WIDTH), Affine(WIDTH, WIDTH)
        self.widen, self.narrow = Affine(WIDTH, INNER), Affine(INNER, WIDTH)
        self.norm_mix, self.norm_out = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "*shape 384"],
        mask: Bool[Tensor, "batch positions"],
        positions: Int[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, "*shape 384"]:
        """The next hidden state; with `positions`, only of the tokens at these positions of the flattened batch."""
        padded = self.attend(x) if positions is None else _padded(self.attend(x), mask, positions)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in padded.chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(query, key, value, mask[:, None, None])
        seen = seen.transpose(1, 2).flatten(2)
        x = self.norm_mix(x + self.mix(seen if positions is None else seen.flatten(0, 1)[positions]))
        return self.norm_out(x + self.narrow(functional.gelu(self.widen(x))))


class MiniLM(nn.Module):
    """Token ids to seven hidden states: the embeddings, then each layer, as transformers numbers them."""

    def __init__(self) -> None:
        super().__init__()
        # Left empty: initialising them on the meta device would make torch import its compiler, which takes a second.
        self.words, self.positions, self.kinds = (
            nn.Embedding(rows, WIDTH, _weight=torch.empty(rows, WIDTH)) for rows in (VOCABULARY, CONTEXT, 2)
        )
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: Int[Tensor, "batch positions"], mask: Bool[Tensor, "batch positions"]) -> States:
        """Hidden states; True in the mask is a real token."""
        states = [self.norm(self.words(ids) + self.positions.weight[: ids.shape[1]] + self.kinds.weight[0])]
        positions = None
        if ids.device.type == "cpu" and not mask.all():
            # Only attention uses the padded shape, products only the real tokens; states are zero at padding.
            positions = mask.flatten().nonzero().squeeze(1)
            states = [states[0].flatten(0, 1)[positions]]
        for layer in self.layers:
            states.append(layer(states[-1], mask, positions))
        return states if positions is None else [_padded(state, mask, positions) for state in states]


def load_minilm(state: Mapping[str, Tensor]) -> MiniLM:
    """Build the network from its stored tensors.

    Raises:
        WeightsError: they do not fit.
    """
    with torch.device("meta"):
        network = MiniLM()
    try:
        network.load_state_dict(widened(state), assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"{BASE} does not fit MiniLM ({reason}); install it again") from None
    return network


def _padded(
    x: Float[Tensor, "tokens width"], mask: Bool[Tensor, "batch positions"], positions: Int[Tensor, " tokens"]
) -> Float[Tensor, "batch positions width"]:
    return x.new_zeros(mask.numel(), x.shape[1]).index_copy(0, positions, x).unflatten(0, mask.shape)


def read_tokenizer() -> WordPiece:
    """Load its tokenizer."""
    return WordPiece.read(base_file(VOCABULARY_FILE))


class MiniLMTexts:
    """Hidden states of MiniLM: content words for the local path, all tokens with special ones for the global path."""

    def __init__(self, spec: TextTowerSpec, options: TowerOptions, *, base: Path | None = None) -> None:
        self.files: tuple[Path, ...] = (base_file(BASE),)
        if spec.sha256 != ORIGINAL:
            verify_files(self.files, spec.sha256, source=spec.source)
        self._spec, self._whole = spec, options.whole
        self._place = place(options.device, options.dtype, half=torch.bfloat16)
        self.device = self._place.device
        self.tokenizer = read_tokenizer()
        self._words: dict[str, WordTokens] = {}  # those seen so far
        self._text_settings = TextSettings(CONTEXT, (CLS,), (SEP,), PAD, options.long_text, unknown=UNKNOWN)
        self.network = load_minilm(read_tensors(self.files)).eval().requires_grad_(False).to(self.device)
        self._sentences: dict[str, Tensor] = {}

    @torch.no_grad()
    def read(
        self,
        ids: Int[Tensor, "texts positions"],
        mask: Bool[Tensor, "texts positions"],
        positions: Int[Tensor, "texts content"],
        content: Bool[Tensor, "texts content"],
    ) -> Features:
        """Features of token ids on its device; the local path has only the tokens at `positions`."""
        with self._place.autocast():
            states = self.network(ids, mask)
        rows = positions.unsqueeze(-1).expand(-1, -1, states[-1].shape[2])
        local = [take_level(states, level).gather(1, rows) for level in self._spec.levels]
        pooled, whole = mean_state(states[-1], mask), self._global(states, mask)
        return Features(torch.cat(local, dim=-1), content, pooled, whole=whole)

    def features(self, texts: Sequence[str]) -> Features:
        """The requested states of every token; global path and means of the last state have a row per window."""
        return self._features(texts)[0]

    def sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts 384"]:
        """Sentence vectors, for which MiniLM was trained: the normalised mean of the last state.

        The vectors of the latest texts are cached, so that a text is not read again after its features.
        """
        known = {text: vector for text in texts if (vector := self._sentences.get(text)) is not None}
        if fresh := [text for text in dict.fromkeys(texts) if text not in known]:
            known |= dict(zip(fresh, self._features(fresh)[1], strict=True))
        return torch.stack([known[text] for text in texts])

    @torch.no_grad()
    def _features(self, texts: Sequence[str]) -> tuple[Features, Float[Tensor, "texts 384"]]:
        batch = as_tensors(pack(tokenise_all(self.tokenizer, texts, self._words), self._text_settings))
        attention = sent(batch.attention, self.device)
        with self._place.autocast():
            states = [state.float() for state in self.network(sent(batch.ids, self.device), attention)]
        local = unpack_tokens(take_levels(states, self._spec.levels), batch)
        pooled, whole = mean_state(states[-1], attention), self._global(states, attention)
        every = Features(local, sent(batch.mask, self.device), pooled, batch.layout, whole, batch.windows)
        vectors = join_windows(pooled, batch.windows)
        if len(self._sentences) > _MOST_SENTENCES:
            self._sentences = {}
        self._sentences.update(zip(texts, vectors, strict=True))
        return (keep_content(every, texts) if self._spec.words == "content" else every), vectors

    def _global(self, states: Sequence[Tensor], mask: Tensor) -> Features | None:
        levels = self._spec.global_levels or self._spec.levels
        return Features(take_levels(states, levels), mask) if self._whole else None
