"""Which tokens of a caption `mini` compares with the picture: those of words that it was trained to find there."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from msdscore.encoders.text.windows import Span


def content_tokens(text: str, spans: Sequence[Span], stop_words: frozenset[str]) -> tuple[int, ...]:
    """Numbers of the tokens that belong to content words: letters or digits in them, and no stop words.

    Tokens whose spans touch are pieces of one word. A caption of stop words alone keeps all its tokens.

    >>> content_tokens("a dog on grass", [(0, 1), (2, 5), (6, 8), (9, 12), (12, 14)], frozenset({"a", "on"}))
    (1, 3, 4)
    """
    kept = [number for word in _words(text, spans) if _shows(text, spans, word, stop_words) for number in word]
    return tuple(kept) if kept else tuple(range(len(spans)))


def pick(
    points: Float[Tensor, "batch points dim"], chosen: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "batch kept dim"], Bool[Tensor, "batch kept"]]:
    """The chosen points of every item, moved to the front, and their mask."""
    width = max((len(own) for own in chosen), default=0)
    rows = [[*own, *[0] * (width - len(own))] for own in chosen]
    index = torch.tensor(rows, dtype=torch.int64, device=points.device).reshape(len(chosen), width)
    sizes = torch.tensor([[len(own)] for own in chosen], device=points.device)
    mask = torch.arange(width, device=points.device) < sizes
    return points.gather(1, index.unsqueeze(-1).expand(-1, -1, points.shape[2])), mask


def _words(text: str, spans: Sequence[Span]) -> list[list[int]]:
    """Numbers of tokens, word by word: a word goes on while spans touch and both sides are letters or digits."""
    words: list[list[int]] = []
    for number, span in enumerate(spans):
        if words and _joined(text, spans[number - 1], span):
            words[-1].append(number)
        else:
            words.append([number])
    return words


def _joined(text: str, before: Span, after: Span) -> bool:
    return before[1] >= after[0] > 0 and text[after[0] - 1].isalnum() and text[after[0] : after[0] + 1].isalnum()


def _shows(text: str, spans: Sequence[Span], word: Sequence[int], stop_words: frozenset[str]) -> bool:
    spelled = text[spans[word[0]][0] : spans[word[-1]][1]].lower()
    return any(character.isalnum() for character in spelled) and spelled not in stop_words
