"""Explanations with references: words that references share with the caption, and words that only they have."""

from collections.abc import Sequence
from dataclasses import replace

from msdscore.forms.base import Unit
from msdscore.forms.references import agreed_words, p_value_with_references, said_in
from msdscore.scoring.references import ReferenceComparison
from msdscore.scoring.vocabulary import MISSING, NamedWord
from msdscore.text.words import Word


def units_with_references(
    units: Sequence[Unit], words: Sequence[Word], compared: ReferenceComparison
) -> tuple[Unit, ...]:
    """Return the words of a caption with the number of references that have each, and p-values based on both."""
    counts, total = references_with(words, compared), len(compared.references)
    return tuple(
        unit
        if count is None
        else replace(
            unit,
            references=count,
            p_value=None if unit.p_value is None else p_value_with_references(unit.p_value, count, total),
        )
        for unit, count in zip(units, counts, strict=True)
    )


def references_with(words: Sequence[Word], compared: ReferenceComparison) -> list[int | None]:
    """Return the number of references that say or mean each word; None for marks, denied words, and without any."""
    said, meant = said_in(compared.references), compared.meant
    return [
        sum(
            word.stem in stems
            or (meant is not None and bool(word.tokens) and bool(meant[number, list(word.tokens)].all()))
            for number, stems in enumerate(said)
        )
        if said and word.content and not word.denied
        else None
        for word in words
    ]


def missing_with_references(
    missing: Sequence[NamedWord], words: Sequence[Word], compared: ReferenceComparison
) -> tuple[NamedWord, ...]:
    """Return missing words of a caption: first those of several references, then those that the image shows."""
    said = {word.stem for word in words}
    agreed = [own for own in agreed_words(compared.references) if own[0] not in said] if compared.references else []
    named = [NamedWord(word, round(count / len(compared.references), 4), count) for _, word, count in agreed]
    known = {word.word for word in named}
    return tuple([*named, *(word for word in missing if word.word not in known)][:MISSING])


def reference_lines(units: Sequence[Unit], missing: Sequence[NamedWord], count: int) -> list[str]:
    """Return remarks on the words of the references: their counts, and the words that only references have."""
    counted = [unit for unit in units if unit.references is not None]
    backed = [f"{unit.text} (in {unit.references} of {count} references)" for unit in counted if unit.references]
    alone = [unit.text for unit in counted if not unit.references]
    also = [f"{word.word} ({word.references} of {count})" for word in missing if word.references]
    lines = {"people say it too": backed, "in no reference": alone, "references also say": also}
    return [f"{name}: {', '.join(words)}" for name, words in lines.items() if words]
