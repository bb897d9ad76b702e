"""Words of a caption: which can be seen in a picture, told from function words by one list, and their tokens."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from msdscore.encoders.text.windows import Span

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# What `mini` was trained to leave out: words without a picture of their own, and talk about the picture itself.
_LIST = """
a about above across after against all along also am among an and another any anyone anything apart appear appears are
aren't around as at away back be been before behind being below beside besides between both but by can can't could d
did do does doesn't doing don't done down during each every everyone few for from get gets getting go goes going gone
got had has have having he he's her here him his how i if image in inside into is isn't it it's its just let lets like
ll m made make makes making many may me might more most much must my near next no nor not of off on one one's ones
onto or other others our out outside over own per photo photograph picture put puts putting re s same scene see seem
seems seen sees several shall she she's should show showing shown shows so some somebody someone something such t take
taken takes taking than that that's the their theirs them then there there's these they this those through to together
too toward towards under up upon us various ve very via view was wasn't we were what when where which while whilst who
whom whose why will with within without would yes you your
"""
STOP_WORDS = frozenset(_LIST.split())


def words_at(text: str, spans: Sequence[Span]) -> tuple[str, ...]:
    """The whole word that each span lies in, in lower case; empty for a span that begins outside of words.

    >>> words_at("A sky-blue Kayak", [(0, 1), (2, 5), (5, 6), (11, 13), (13, 16)])
    ('a', 'sky', '', 'kayak', 'kayak')
    """
    found = list(_WORD.finditer(text))
    starts = [match.start() for match in found]
    words = []
    for begin, end in spans:
        # A token's span may open with the space before its word.
        first = begin + len(text[begin:end]) - len(text[begin:end].lstrip())
        near = found[bisect_right(starts, first) - 1] if starts and starts[0] <= first else None
        words.append(near.group().casefold() if near is not None and first < near.end() else "")
    return tuple(words)


def content_words(text: str) -> frozenset[str]:
    """All words of a caption that name something to see.

    >>> sorted(content_words("The dog is on a beach."))
    ['beach', 'dog']
    """
    return frozenset(word for word in every_word(text) if is_content(word))


def every_word(text: str) -> frozenset[str]:
    """All words of a caption, in lower case.

    >>> sorted(every_word("The dog, the cat."))
    ['cat', 'dog', 'the']
    """
    return frozenset(each_word(text))


def each_word(text: str) -> Iterator[str]:
    """The words of a caption in lower case, as they come."""
    return (match.group().casefold() for match in _WORD.finditer(text))


def is_content(word: str) -> bool:
    """Whether a lower-case word names something to see; signs and stop words do not.

    >>> is_content("dog"), is_content("the"), is_content("")
    (True, False, False)
    """
    return bool(word) and word not in STOP_WORDS


def stem(word: str) -> str:
    """A word without the s of a plural, so that one dog and two dogs are the same thing to see.

    >>> stem("dogs"), stem("grass"), stem("bus")
    ('dog', 'grass', 'bus')
    """
    return word[:-1] if len(word) > 3 and is_plural(word) else word


def is_plural(word: str) -> bool:
    """Whether a word ends in the s of a plural."""
    return word.endswith("s") and not word.endswith("ss")


def content_tokens(text: str, spans: Sequence[Span]) -> tuple[int, ...]:
    """Numbers of the tokens that belong to content words: letters or digits in them, and no stop words.

    Tokens whose spans touch are pieces of one word. A caption of stop words alone keeps all its tokens.

    >>> content_tokens("a dog on grass", [(0, 1), (2, 5), (6, 8), (9, 12), (12, 14)])
    (1, 3, 4)
    """
    kept = [number for word in token_words(text, spans) if _shows(text, spans, word) for number in word]
    return tuple(kept) if kept else tuple(range(len(spans)))


def content_word_of_each(text: str, spans: Sequence[Span]) -> list[str]:
    """The content word of each token in lower case; empty where it belongs to none.

    >>> content_word_of_each("a Dog on grass", [(0, 1), (2, 5), (6, 8), (9, 12), (12, 14)])
    ['', 'dog', '', 'grass', 'grass']
    """
    found = [""] * len(spans)
    for word in token_words(text, spans):
        if _shows(text, spans, word):
            for number in word:
                found[number] = text[spans[word[0]][0] : spans[word[-1]][1]].lower()
    return found


def token_words(text: str, spans: Sequence[Span]) -> list[list[int]]:
    """Numbers of tokens, word by word: a word goes on while spans touch and both sides are letters or digits."""
    words: list[list[int]] = []
    for number, span in enumerate(spans):
        if words and _joined(text, spans[number - 1], span):
            words[-1].append(number)
        else:
            words.append([number])
    return words


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


def _joined(text: str, before: Span, after: Span) -> bool:
    return before[1] >= after[0] > 0 and text[after[0] - 1].isalnum() and text[after[0] : after[0] + 1].isalnum()


def _shows(text: str, spans: Sequence[Span], word: Sequence[int]) -> bool:
    spelled = text[spans[word[0]][0] : spans[word[-1]][1]].lower()
    return any(character.isalnum() for character in spelled) and spelled not in STOP_WORDS
