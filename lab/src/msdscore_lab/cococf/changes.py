"""Controlled changes of a caption: an object, an attribute or a relation is replaced.

A change is easy if the new concept is clearly absent: not annotated, in no caption, of no family that the image shows,
and not a frequent companion. It is hard if it is confusable: of the same family, or a frequent companion of an object
in the image; near synonyms are excluded from both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msdscore.text.words import Span
from msdscore_lab.cococf.knowledge import ImageFacts, Knowledge
from msdscore_lab.cococf.sites import (
    PLACE,
    CaptionWords,
    Site,
    attribute_sites,
    object_sites,
    relation_sites,
    scene_sites,
)
from msdscore_lab.cococf.vocabulary import WORKED_AT, Concept, vocabulary
from msdscore_lab.edits import apply_edits, with_articles

Split = Literal["easy", "hard"]
SPLITS: tuple[Split, ...] = ("easy", "hard")
_EITHER_SIDE = frozenset(
    ("in front of", "behind")
)  # a person at a desk can be described as in front of it or behind it


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A true caption and one that differs from it by one change; spans are the characters that differ.

    `subset` names the change in SugarCrepe's words, such as `replace_obj`. It is empty, like all following fields, in
    files that do not record the change; image, source and split are known if a change was chosen for an image.
    """

    positive: str
    negative: str
    subset: str = ""
    positive_spans: tuple[Span, ...] = ()
    negative_spans: tuple[Span, ...] = ()
    removed: tuple[str, ...] = ()
    inserted: tuple[str, ...] = ()
    image: str = ""  # name of its file
    source: str = ""  # captioner
    split: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A caption to change, with facts about its image and statistics of all images."""

    words: CaptionWords
    facts: ImageFacts
    knowledge: Knowledge
    loose: bool = False  # also replace what may read badly, and scenes and things that are not annotated


Maker = Callable[[Subject, Split], Iterator[Counterfactual]]


def replace_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Replace an object."""
    for site in object_sites(about.words, loose=about.loose):
        # The rest of the caption must fit the new object.
        needs_same_kind = not about.loose and (site.opens or site.concept.animate)
        for concept in about.facts.absent:
            if needs_same_kind and concept.animate != site.concept.animate:
                continue
            if _fits_split(concept, site.concept, about.facts, split):
                for form in _forms(concept, site.many):
                    yield _exchange(about.words.caption, site, form, "replace_obj")
        other = vocabulary().people.get(site.text)
        if split == "hard" and other and not {other, "his", "her", "he", "she", "him"} & about.facts.said:
            yield _exchange(about.words.caption, site, other, "replace_obj")
    for site in scene_sites(about.words) if about.loose else ():
        for name, concept in vocabulary().scenes.items():
            is_mentioned = not about.facts.said.isdisjoint({name, *concept.near, *name.split()})
            if concept.slot != site.concept.slot or name in site.concept.near or is_mentioned:
                continue
            if (concept.family == site.concept.family) == (split == "hard"):
                yield _exchange(about.words.caption, site, name, "replace_obj")


def replace_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Replace an attribute by another one of its slot."""
    for site in attribute_sites(about.words):
        for other in _other_words(site, about, split):
            yield _exchange(about.words.caption, site, other, "replace_att")


def replace_relation(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Replace an action or a spatial relation."""
    said, places = about.facts.said, vocabulary().places
    # The words of a relation such as `on top of` may occur in the caption without being adjacent.
    said |= {name for name in places if " " in name and said.issuperset(name.split())}
    for site in relation_sites(about.words):
        others: Iterable[str] = _other_words(site, about, split)
        if site.concept is PLACE:
            excluded = said | _EITHER_SIDE if site.head in WORKED_AT else said
            others = (name for name in places[site.text][split] if name not in excluded)
        for other in others:
            yield _exchange(about.words.caption, site, other, "replace_rel")


MAKERS: dict[str, Maker] = {
    "replace_obj": replace_object,
    "replace_att": replace_attribute,
    "replace_rel": replace_relation,
}


def _fits_split(concept: Concept, here: Concept, facts: ImageFacts, split: Split) -> bool:
    """Return whether an absent object fits the split (easy or hard); `here` is the object that it replaces."""
    companion = concept.name in facts.companions
    if split == "easy":
        return concept.family not in facts.families and not companion
    return concept.family == here.family or companion


def _forms(concept: Concept, many: bool) -> Sequence[str]:
    if concept.name == "person":
        return ("men", "women", "people") if many else ("man", "woman", "person")
    form = concept.plural if many else concept.singular
    return () if form is None else (form,)


def _other_words(site: Site, about: Subject, split: Split) -> Iterator[str]:
    """Yield words that fit a site and are false there: confusable (hard) or unrelated (easy) ones."""
    here, said, is_quality = site.concept, about.facts.said, site.concept.kind == "attribute"
    usual = about.knowledge.usual.get(site.head, frozenset())
    if is_quality and not site.many and f"{site.head}s" in said:
        return  # the caption mentions several, and it may be true of another one
    for other in (vocabulary().qualities if is_quality else vocabulary().actions).values():
        if other.slot != here.slot or other.name == here.name or ({other.name} | other.near) & said:
            continue
        if other.name in here.near or here.name in other.near:
            continue
        confusable = other.family == here.family or other.name in usual
        if confusable == (split == "hard"):
            yield other.name


def _exchange(caption: str, site: Site, word: str, subset: str) -> Counterfactual:
    edits = with_articles(caption, [(site.start, site.end, word)])
    negative, spans = apply_edits(caption, edits)
    positive_spans = tuple((start, end) for start, end, _ in edits)
    return Counterfactual(caption, negative, subset, positive_spans, spans, (site.text,), (word,))
