"""A small language model of captions, three words in a row; it can leave out what it learnt from one picture."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msdscore.cococf.sites import read_caption

_SHARES = (0.6, 0.3, 0.1)  # of three words, two and one
_BEGIN, _END = "<s>", "</s>"
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaptionModel:
    """Counts of one, two and three words in a row."""

    counts: Mapping[Gram, int]
    total: int
    words: int

    def log_probability(self, text: str, own: Mapping[Gram, int]) -> float:
        """Of a whole caption; `own` are counts that the model must not know, those of the picture itself."""
        words = [_BEGIN, _BEGIN, *read_caption(text).words, _END]
        return sum(self._step(tuple(words[place - 2 : place + 1]), own) for place in range(2, len(words)))

    def _step(self, three: Gram, own: Mapping[Gram, int]) -> float:
        known, left_out = self.counts.get, own.get
        one = three[2:]
        mixed = _SHARES[2] * (max(0, known(one, 0) - left_out(one, 0)) + 1) / (self.total + self.words + 1)
        for share, gram in ((_SHARES[0], three), (_SHARES[1], three[1:])):
            context = (*gram[:-1], "")
            before = known(context, 0) - left_out(context, 0)
            if before > 0:
                mixed += share * max(0, known(gram, 0) - left_out(gram, 0)) / before
        return math.log(mixed)

    def seen(self, gram: Gram, own: Mapping[Gram, int]) -> int:
        """How often words stood in a row in the captions of other images."""
        return self.counts.get(gram, 0) - own.get(gram, 0)


def count_grams(texts: Iterable[str]) -> dict[Gram, int]:
    """Every one, two and three words in a row, and with an empty last word how often the words before it stood."""
    found: dict[Gram, int] = {}
    for text in texts:
        words = [_BEGIN, _BEGIN, *read_caption(text).words, _END]
        for place in range(2, len(words)):
            one, two, three = words[place - 2 : place + 1]
            for gram in ((three,), (two, three), (one, two, three), (two, ""), (one, two, "")):
                found[gram] = found.get(gram, 0) + 1
    return found


def caption_model(texts: Iterable[str]) -> CaptionModel:
    """Learn from captions.

    >>> model = caption_model(["a dog runs", "a dog sits", "a cat runs"])
    >>> model.log_probability("a dog runs", {}) > model.log_probability("dog a runs", {})
    True
    """
    counts = count_grams(texts)
    single = {gram: count for gram, count in counts.items() if len(gram) == 1}
    return CaptionModel(counts, sum(single.values()), len(single))
