"""Parts of captions: noun phrases, first clauses and other spans between the ends of phrases.

They are true of the image if the caption is, and shorter, so they calibrate captions of few words.
"""

from msdscore.text.words import Word, segment

_DETERMINERS = frozenset(
    ["a", "an", "the", "some", "several", "many", "his", "her", "its", "their", "this", "that", "another"]
)
_VERBS = ("ing", "ed")


def parts(caption: str) -> list[tuple[str, int]]:
    """Return parts of a caption with their numbers of distinct content words, each once.

    >>> parts("A man is riding a brown horse.")[:4]
    [('A man', 1), ('A man is riding', 2), ('A man is riding a brown horse', 4), ('a horse', 1)]
    """
    words = segment(caption, compounds=False)
    runs = _runs(words)
    found: dict[str, int] = {}
    for number, run in enumerate(runs):
        first, last = run[0], run[-1]
        if _is_verb(words[first]):
            continue
        start = first - 1 if first and words[first - 1].text.lower() in _DETERMINERS else first
        if len(run) > 1 and not _is_verb(words[last]):
            determiner = f"{words[start].text} " if start < first else ""
            found[determiner + words[last].text] = 1  # the noun without its adjectives
        for end in runs[number:]:
            stems = {word.stem for word in words[start : end[-1] + 1] if word.content}
            found[caption[words[start].start : words[end[-1]].end]] = len(stems)
    return list(found.items())


def _runs(words: tuple[Word, ...]) -> list[list[int]]:
    """Return the positions of adjacent content words, separated before verbs."""
    runs: list[list[int]] = [[]]
    for number, word in enumerate(words):
        if not word.content or word.negated:
            runs.append([])
            continue
        if runs[-1] and _is_verb(word):
            runs.append([])
        runs[-1].append(number)
    return [run for run in runs if run]


def _is_verb(word: Word) -> bool:
    return word.text.lower().endswith(_VERBS)
