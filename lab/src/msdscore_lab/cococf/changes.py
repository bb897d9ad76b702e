"""Controlled changes of a caption: an object, attribute or relation is added, replaced or swapped.

A change is easy if the new concept is clearly absent: not annotated, in no caption, of no family that the image shows,
and not a frequent companion. It is hard if it is confusable: of the same family, or a frequent companion of an object
in the image; near synonyms are excluded from both. Swapping two objects or attributes is a hard change if they are of
one family, and easy otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from msdscore.text.words import Span
from msdscore_lab.cococf.knowledge import ImageFacts, Knowledge
from msdscore_lab.cococf.sites import (
    PLACE,
    CaptionWords,
    Site,
    attribute_sites,
    bare_heads,
    is_directed,
    object_sites,
    read_caption,
    relation_sites,
    scene_sites,
    words_and_bigrams,
)
from msdscore_lab.cococf.vocabulary import WORKED_AT, Concept, vocabulary
from msdscore_lab.edits import apply_edits, article, with_articles

Split = Literal["easy", "hard"]
SPLITS: tuple[Split, ...] = ("easy", "hard")
# Without a position, so that they are true for every annotated object.
_ENDINGS = (" with {} in view", ", along with {}", ", and there is {} too", " and {}")

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
    others: Sequence[str]  # the image's other captions
    plain: bool = False  # additions are compared with the unchanged caption
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
                    yield _exchange(about.words.caption, [(site, form)], "replace_obj")
        other = vocabulary().people.get(site.text)
        if split == "hard" and other and not {other, "his", "her", "he", "she", "him"} & about.facts.said:
            yield _exchange(about.words.caption, [(site, other)], "replace_obj")
    for site in scene_sites(about.words) if about.loose else ():
        for name, concept in vocabulary().scenes.items():
            is_mentioned = not about.facts.said.isdisjoint({name, *concept.near, *name.split()})
            if concept.slot != site.concept.slot or name in site.concept.near or is_mentioned:
                continue
            if (concept.family == site.concept.family) == (split == "hard"):
                yield _exchange(about.words.caption, [(site, name)], "replace_obj")


def replace_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Replace an attribute by another one of its slot."""
    for site in attribute_sites(about.words):
        for other in _other_words(site, about, split):
            yield _exchange(about.words.caption, [(site, other)], "replace_att")


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
            yield _exchange(about.words.caption, [(site, other)], "replace_rel")


def add_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Add an absent object to one caption and a present one to the other: both are equally long and fluent."""
    caption, objects, shown = about.words.caption, vocabulary().objects, vocabulary().shown_by
    said, stem = words_and_bigrams([caption]), caption.rstrip(" .")
    present = [
        objects[name]
        for name in sorted(about.facts.objects or ())
        if name in objects and (about.plain or not shown[name] & said)  # a true addition says something new
    ]
    for index, here in enumerate(present):
        ending = _ENDINGS[(len(stem) + index) % len(_ENDINGS)]
        start, present_text = len(stem) + ending.index("{}"), _with_article(here)
        for concept in about.facts.absent:
            if (concept.singular is None) == (here.singular is None) and _fits_split(concept, here, about.facts, split):
                absent_text = _with_article(concept)
                yield Counterfactual(
                    f"{stem}{ending.format(present_text)}.", f"{stem}{ending.format(absent_text)}.", "add_obj",
                    ((start, start + len(present_text)),), ((start, start + len(absent_text)),),
                    (here.singular or present_text,), (concept.singular or absent_text,),
                )  # fmt: skip


def add_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Add a false attribute of an object whose true one is in another caption of the image."""
    for positive, site in _completed(about):
        for other in _other_words(site, about, split):
            yield _exchange(positive, [(site, other)], "add_att")


def swap_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Swap two objects, if the text between them or about them distinguishes them."""
    for words in (about.words, *(read_caption(true) for true, _ in _completed(about))):
        qualities = {site.end + 1: site for site in attribute_sites(words)}
        for first, second in combinations(object_sites(words), 2):
            if first.text == second.text or first.many != second.many:
                continue
            # Such as a black dog and a white cat: each has a quality that the other does not have.
            first_quality, second_quality = qualities.get(first.start), qualities.get(second.start)
            is_distinct = (
                first_quality is not None
                and second_quality is not None
                and _are_exclusive(first_quality, second_quality, about.facts)
            )
            # A completed caption is used only for the quality that it was completed with.
            if not is_distinct and not (words is about.words and is_directed(words, first, second)):
                continue
            same_family = first.concept.family == second.concept.family
            close = same_family or second.concept.name in about.knowledge.companions.get(first.concept.name, ())
            if close == (split == "hard"):
                yield _exchange(words.caption, [(first, second.text), (second, first.text)], "swap_obj")


def swap_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Swap two attributes of one slot between their objects; one may be from another caption."""
    usual = about.knowledge.usual
    for words in (about.words, *(read_caption(true) for true, _ in _completed(about))):
        for first, second in combinations(attribute_sites(words), 2):
            if not _are_exclusive(first, second, about.facts):
                continue
            crossed = second.text in usual.get(first.head, ()) and first.text in usual.get(second.head, ())
            same_family = first.concept.family == second.concept.family or first.concept.slot == "number"
            if (crossed or same_family) == (split == "hard"):
                yield _exchange(words.caption, [(first, second.text), (second, first.text)], "swap_att")


MAKERS: dict[str, Maker] = {
    "replace_obj": replace_object,
    "replace_att": replace_attribute,
    "replace_rel": replace_relation,
    "add_obj": add_object,
    "add_att": add_attribute,
    "swap_obj": swap_object,
    "swap_att": swap_attribute,
}


def _completed(about: Subject) -> Iterator[tuple[str, Site]]:
    """Yield the caption with an additional true attribute from another caption of the image, and its site."""
    sites_by_head = {site.head: site for text in about.others for site in attribute_sites(read_caption(text))}
    for start, head in bare_heads(about.words):
        if head in sites_by_head:
            attribute, caption = sites_by_head[head], about.words.caption
            true, ((_, end),) = apply_edits(caption, with_articles(caption, [(start, start, f"{attribute.text} ")]))
            yield true, replace(attribute, start=end - len(attribute.text), end=end)


def _are_exclusive(first: Site, second: Site, facts: ImageFacts) -> bool:
    """Return whether each attribute is false for the object of the other."""
    first_concept, second_concept = first.concept, second.concept
    if (
        first_concept.slot != second_concept.slot
        or first_concept.name == second_concept.name
        or first.head == second.head
    ):
        return False
    if (
        second_concept.name in first_concept.near
        or first_concept.name in second_concept.near
        or (first_concept.slot == "number" and first.many != second.many)
    ):
        return False
    return not {f"{second.text} {first.head}", f"{first.text} {second.head}"} & facts.said


def _fits_split(concept: Concept, here: Concept, facts: ImageFacts, split: Split) -> bool:
    """Return whether an absent object fits the split (easy or hard); `here` is the object that it replaces."""
    companion = concept.name in facts.companions
    if split == "easy":
        return concept.family not in facts.families and not companion
    return concept.family == here.family or companion


def _with_article(concept: Concept) -> str:
    return f"{article(concept.singular)} {concept.singular}" if concept.singular else str(concept.plural)


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


def _exchange(caption: str, sites: Sequence[tuple[Site, str]], subset: str) -> Counterfactual:
    edits = with_articles(caption, [(site.start, site.end, word) for site, word in sites])
    negative, negative_spans = apply_edits(caption, edits)
    positive_spans = tuple((start, end) for start, end, _ in edits)
    removed, inserted = tuple(site.text for site, _ in sites), tuple(word for _, word in sites)
    return Counterfactual(caption, negative, subset, positive_spans, negative_spans, removed, inserted)
