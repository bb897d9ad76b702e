"""One controlled change of a caption: a thing, a quality or a relation added, replaced or swapped.

A change is easy where the new concept is clearly absent: not annotated, in no caption, of no family that the image
shows, and no usual companion. It is hard where it can be mistaken: of the same family, or a usual companion of what is
there; near synonyms are left out of both. Two things or qualities that are swapped are a hard change where they are of
one family, an easy one otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from msdscore.cococf.knowledge import ImageFacts, Knowledge
from msdscore.cococf.sites import (
    CaptionWords,
    Site,
    attribute_sites,
    bare_heads,
    directed,
    object_sites,
    read_caption,
    relation_sites,
    words_said,
)
from msdscore.cococf.vocabulary import WORKED_AT, ChangeKind, Concept, vocabulary
from msdscore.text.edits import ARTICLES, article, put_in, with_articles
from msdscore.text.words import Span

Action = Literal["add", "replace", "swap"]
Split = Literal["easy", "hard"]
SPLITS: tuple[Split, ...] = ("easy", "hard")
_SHORT: dict[ChangeKind, str] = {"object": "obj", "attribute": "att", "relation": "rel"}
# They say nothing about where a thing is, so that one that is annotated is truly there.
_ENDINGS = (" with {} in view", ", along with {}", ", and there is {} too", " and {}")

_EITHER_SIDE = frozenset(("in front of", "behind"))  # who sits at a desk is in front of it, or behind it


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A caption that is true and one that differs from it by one change; spans are the characters that differ."""

    action: Action
    kind: ChangeKind
    positive: str
    negative: str
    positive_spans: tuple[Span, ...]
    negative_spans: tuple[Span, ...]
    removed: tuple[str, ...]
    inserted: tuple[str, ...]

    @property
    def subset(self) -> str:
        """The change in SugarCrepe's words, such as `replace_obj`."""
        return f"{self.action}_{_SHORT[self.kind]}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A caption to change, with what is known of its image and of all images."""

    words: CaptionWords
    facts: ImageFacts
    knowledge: Knowledge
    others: tuple[str, ...]  # the image's other captions

    @property
    def caption(self) -> str:
        """The caption as it is written."""
        return self.words.caption


Maker = Callable[[Subject, Split], Iterator[Counterfactual]]


def subject(caption: str, facts: ImageFacts, knowledge: Knowledge, others: Iterable[str]) -> Subject:
    """Read a caption for changing."""
    return Subject(read_caption(caption), facts, knowledge, tuple(others))


def replace_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """A thing instead of another."""
    for site in object_sites(about.words):
        assert site.concept is not None, "objects are of a class"
        for concept in about.facts.absent:
            if _fits(concept, site, about, split):
                for form in _forms(concept, site.many):
                    yield _exchange(about.caption, [(site, form)], "replace", "object")
        other = vocabulary().people.get(site.text)
        if split == "hard" and other and not {other, "his", "her", "he", "she", "him"} & about.facts.said:
            yield _exchange(about.caption, [(site, other)], "replace", "object")


def replace_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """A quality instead of another of its slot."""
    for site in attribute_sites(about.words):
        for other in _other_words(site, about, split, vocabulary().qualities.values()):
            yield _exchange(about.caption, [(site, other)], "replace", "attribute")


def replace_relation(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Another action, or another place."""
    for site in relation_sites(about.words):
        if site.concept is None:
            said = about.facts.said | _pairs(about.facts.said)
            said |= _EITHER_SIDE if site.head in WORKED_AT else frozenset()
            others: Iterable[str] = (name for name in vocabulary().places[site.text][split] if name not in said)
        else:
            others = _other_words(site, about, split, vocabulary().actions.values())
        for other in others:
            yield _exchange(about.caption, [(site, other)], "replace", "relation")


def add_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """A thing that is not there, named where the true caption names one that is: both are equally long and fluent."""
    said, shown = words_said([about.caption]), vocabulary().shown_by
    true = [
        concept
        for name in sorted(about.facts.objects or ())
        if (concept := vocabulary().objects.get(name)) is not None and not shown[name] & said
    ]
    stem = about.caption.rstrip(" .")
    for number, here in enumerate(true):
        ending = _ENDINGS[(len(stem) + number) % len(_ENDINGS)]
        for concept in about.facts.absent:
            if _wrong(concept, here, about.facts, split) and (concept.singular is None) == (here.singular is None):
                yield _added(stem, ending, _noun(here), _noun(concept))


def add_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """A false quality of a thing, where another caption of the image knows the true one."""
    for true, there in _completed(about):
        for other in _other_words(there, about, split, vocabulary().qualities.values()):
            yield _exchange(true, [(there, other)], "add", "attribute")


def swap_object(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Two things that change places, where what is said between them or of each of them tells them apart."""
    for words in (about.words, *(read_caption(true) for true, _ in _completed(about))):
        for first, second in combinations(object_sites(words), 2):
            assert first.concept is not None
            assert second.concept is not None
            if first.text == second.text or first.many != second.many:
                continue
            # A completed caption is used only for the quality that it was completed with.
            between = words is about.words and directed(words, first, second)
            if not between and not _told_apart(words, first, second, about.facts):
                continue
            alike = first.concept.family == second.concept.family
            close = alike or second.concept.name in about.knowledge.companions.get(first.concept.name, ())
            if close == (split == "hard"):
                yield _exchange(words.caption, [(first, second.text), (second, first.text)], "swap", "object")


def swap_attribute(about: Subject, split: Split) -> Iterator[Counterfactual]:
    """Two qualities of one slot that change the things they belong to; another caption may know one of them."""
    for words in (about.words, *(read_caption(true) for true, _ in _completed(about))):
        for first, second in combinations(attribute_sites(words), 2):
            if not _change_sides(first, second, about.facts):
                continue
            assert first.concept is not None
            assert second.concept is not None
            usual = about.knowledge.usual
            crossed = second.text in usual.get(first.head, ()) and first.text in usual.get(second.head, ())
            alike = first.concept.family == second.concept.family or first.concept.slot == "number"
            if (crossed or alike) == (split == "hard"):
                yield _exchange(words.caption, [(first, second.text), (second, first.text)], "swap", "attribute")


MAKERS: dict[str, Maker] = {
    "replace_obj": replace_object,
    "replace_att": replace_attribute,
    "replace_rel": replace_relation,
    "add_obj": add_object,
    "add_att": add_attribute,
    "swap_obj": swap_object,
    "swap_att": swap_attribute,
}


def plainly(change: Counterfactual, caption: str) -> Counterfactual:
    """An addition against the caption as it stands, as SugarCrepe has it: the wrong caption is then always longer."""
    return Counterfactual(
        change.action, change.kind, caption, change.negative, (), change.negative_spans, (), change.inserted
    )


def _completed(about: Subject) -> Iterator[tuple[str, Site]]:
    """The caption with one true quality more, as another caption of the image has it, and where that stands."""
    known = {site.head: site for text in about.others for site in attribute_sites(read_caption(text)) if site.concept}
    for start, head in bare_heads(about.words):
        if head in known:
            here = known[head]
            true, ((_, end),) = put_in(about.caption, with_articles(about.caption, [(start, start, f"{here.text} ")]))
            yield true, replace(here, start=end - len(here.text), end=end)


def _change_sides(first: Site, second: Site, facts: ImageFacts) -> bool:
    """Whether two qualities are false of each other's things."""
    mine, theirs = first.concept, second.concept
    if (
        mine is None
        or theirs is None
        or mine.slot != theirs.slot
        or mine.name == theirs.name
        or first.head == second.head
    ):
        return False
    if theirs.name in mine.near or mine.name in theirs.near or (mine.slot == "number" and first.many != second.many):
        return False
    return not {f"{second.text} {first.head}", f"{first.text} {second.head}"} & facts.said


def _told_apart(words: CaptionWords, first: Site, second: Site, facts: ImageFacts) -> bool:
    """Whether each of two things has a quality that the other one does not have: a black dog and a white cat."""
    qualities = {site.end + 1: site for site in attribute_sites(words)}
    mine, theirs = qualities.get(first.start), qualities.get(second.start)
    return mine is not None and theirs is not None and _change_sides(mine, theirs, facts)


def _wrong(concept: Concept, here: Concept, facts: ImageFacts, split: Split) -> bool:
    """Whether an absent object is wrong in the way of the split; `here` is what it stands for."""
    companion = concept.name in facts.companions
    if split == "easy":
        return concept.family not in facts.families and not companion
    return concept.family == here.family or companion


def _fits(concept: Concept, site: Site, about: Subject, split: Split) -> bool:
    assert site.concept is not None
    if not _wrong(concept, site.concept, about.facts, split):
        return False
    if site.opens or site.concept.animate:  # what the caption goes on to say of it must suit it
        return concept.animate == site.concept.animate
    return True


def _forms(concept: Concept, many: bool) -> Sequence[str]:
    if concept.name == "person":
        return ("men", "women", "people") if many else ("man", "woman", "person")
    form = concept.plural if many else concept.singular
    return () if form is None else (form,)


def _other_words(site: Site, about: Subject, split: Split, concepts: Iterable[Concept]) -> Iterator[str]:
    """Words that can stand at a site and are false there: confusable ones, or those far from it."""
    here = site.concept
    assert here is not None
    usual = about.knowledge.usual.get(site.head, frozenset())
    if site.kind == "attribute" and not site.many and f"{site.head}s" in about.facts.said:
        return  # another one of them may be so
    for other in concepts:
        if other.slot != here.slot or other.name == here.name or not about.facts.unsaid(other):
            continue
        if other.name in here.near or here.name in other.near:
            continue
        confusable = other.family == here.family or other.name in usual
        if confusable == (split == "hard"):
            yield other.name


def _pairs(said: Iterable[str]) -> frozenset[str]:
    """The last words of places of several words: of `on top of`, that something is on top."""
    words = frozenset(said)
    return frozenset(name for name in vocabulary().places if " " in name and set(name.split()) <= words)


def _noun(concept: Concept) -> str:
    return str(concept.plural) if concept.singular is None else f"{article(concept.singular)} {concept.singular}"


def _added(stem: str, ending: str, true: str, false: str) -> Counterfactual:
    before = len(stem) + ending.index("{}")
    return Counterfactual(
        "add", "object", f"{stem}{ending.format(true)}.", f"{stem}{ending.format(false)}.",
        ((before, before + len(true)),), ((before, before + len(false)),), (_bare(true),), (_bare(false),),
    )  # fmt: skip


def _bare(noun: str) -> str:
    first, _, rest = noun.partition(" ")
    return rest if first in ARTICLES else noun


def _exchange(caption: str, sites: Sequence[tuple[Site, str]], action: Action, kind: ChangeKind) -> Counterfactual:
    edits = [(site.start, site.end, word) for site, word in sites]
    edits = with_articles(caption, edits)
    false = put_in(caption, edits)
    true = caption, tuple((start, end) for start, end, _ in edits)
    removed, inserted = tuple(site.text for site, _ in sites), tuple(word for _, word in sites)
    return Counterfactual(action, kind, true[0], false[0], true[1], false[1], removed, inserted)
