"""Words that a counterfactual may replace: COCO objects, attributes and relations, with their near synonyms.

A concept belongs to a family (the supercategory of an object, a pole of an attribute, a sort of action). Concepts that
can be true of the same thing, such as gray and silver, are near synonyms and never replace each other.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

ChangeKind = Literal["object", "attribute", "relation"]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Concept:
    """One concept of captions.

    `slot` names the position in a sentence that it fits (for objects always `noun`); concepts of one slot can replace
    each other. `singular` and `plural` are its forms, None if it has none.
    """

    name: str
    kind: ChangeKind
    family: str
    slot: str
    singular: str | None
    plural: str | None = None
    near: frozenset[str] = frozenset()

    @property
    def animate(self) -> bool:
        """Whether it is a person or an animal."""
        return self.family in ("person", "animal")


# Pairs of words for people that can replace each other.
_PEOPLE = (("man", "woman"), ("men", "women"), ("boy", "girl"), ("boys", "girls"))
# Objects that others can be on or under.
SUPPORTS = word_set(
    "table desk bed couch sofa bench chair counter shelf tree bridge car truck bus boat plate box umbrella "
    "roof cart stool nightstand dresser cabinet stove suitcase log rock trailer platform wagon rug blanket"
)

WORKED_AT = word_set("laptop computer desk counter table keyboard monitor podium microphone grill stove piano register")


@dataclass(frozen=True, slots=True)
class Concepts:
    """All concepts by kind, and the words that mention each of them."""

    objects: Mapping[str, Concept]
    shown_by: Mapping[str, frozenset[str]]  # words that may refer to each class
    qualities: Mapping[str, Concept]  # attributes by word
    scenes: Mapping[str, Concept]  # places, their parts and other things that are not annotated
    actions: Mapping[str, Concept]  # verbs by form (-ing or -s)
    places: Mapping[str, Mapping[str, tuple[str, ...]]]  # replacements by spatial relation and split
    people: Mapping[str, str]  # man -> woman


@cache
def vocabulary() -> Concepts:
    """Return the concepts of `words.toml`."""
    words = tomllib.loads(files("msdscore_lab.cococf").joinpath("words.toml").read_text("utf-8"))
    objects, shown_by = _objects(words["objects"])
    places = {}
    for line in words["places"].splitlines():
        name, _, rest = line.partition(":")
        easy, hard = (tuple(filter(None, map(str.strip, part.split(",")))) for part in rest.split("|"))
        places[name] = {"easy": easy, "hard": hard}
    return Concepts(
        objects=objects,
        shown_by=shown_by,
        qualities=_concepts(words["qualities"], "attribute"),
        scenes=_concepts(words["scenes"], "object"),
        actions=_concepts(words["relations"], "relation"),
        places=places,
        people=dict(_PEOPLE) | {woman: man for man, woman in _PEOPLE},
    )


def _objects(text: str) -> tuple[dict[str, Concept], dict[str, frozenset[str]]]:
    objects: dict[str, Concept] = {}
    shown_by: dict[str, frozenset[str]] = {}
    family = ""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if name.startswith("["):
            family = name.strip("[]")
            continue
        singular, plural, *other_fields = [part.strip() for part in rest.split(";")] if colon else ["", ""]
        singular_form = None if singular == "-" else singular or name
        plural_form = plural or f"{singular or name}s"
        objects[name] = Concept(name, "object", family, "noun", singular_form, plural_form)
        others = " ".join(other_fields).split()
        shown_by[name] = frozenset(filter(None, [name, singular_form, plural_form, f"{name}s", *others]))
    shown_by["person"] |= {word for pair in _PEOPLE for word in pair} | {
        "lady",
        "ladies",
        "guy",
        "guys",
        "male",
        "female",
    }
    return objects, shown_by


def _concepts(text: str, kind: ChangeKind) -> dict[str, Concept]:
    concepts: dict[str, Concept] = {}
    for line in text.splitlines():
        slot, _, rest = line.partition(":")
        family = ""
        for part in rest.split():
            if part.startswith("["):
                family = part.strip("[]")
                continue
            word, *near = part.replace("_", " ").split("/")
            concepts[word] = Concept(word, kind, family, slot, word, near=frozenset(near))
    return concepts
