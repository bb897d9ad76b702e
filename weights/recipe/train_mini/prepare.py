"""All texts of a run, prepared once: texts by rule, tokens, facts about words; cached in a file."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.io.files import replacing
from msdscore.text.words import stem
from msdscore_lab import edits
from msdscore_lab.align.repeatable import stream
from msdscore_lab.pairs import Pairs, TrainingPair, image_name
from msdscore_torch.aligned.minilm import MiniLMTexts
from train_mini.negatives import class_weights, make_negatives
from train_mini.phrases import (
    CLASS_FRAMES,
    Lexicon,
    PhraseMaker,
    build_lexicon,
    read_classes,
    similar_images,
    words_of,
)
from train_mini.recipe import MiniRecipe, MiniSample
from train_mini.texts import NO_WORD, FlatTexts, flatten
from train_mini.words import WordFacts, word_facts

KINDS = ("captions", "machine", "joined", "short", "long", "negatives", "classes")
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_RULES = 3  # increase when texts by rule change, which invalidates cached files


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts of every kind as tokens, facts about their words, and images that must not be mirrored."""

    texts: dict[str, FlatTexts]
    facts: WordFacts
    sided: npt.NDArray[np.bool_]


def train_pairs(pairs: Pairs, spec: MiniSample) -> Pairs:
    """Return the training pairs: one in `held_out` is excluded, by the hash of the image's name."""
    return pairs.take([item for item, pair in enumerate(pairs.items) if not is_held_out(pair, spec.held_out)])


def is_held_out(pair: TrainingPair, share: int) -> bool:
    """Return whether an image is held out for calibration, one in `share`; 0 holds out none."""
    name = pair.name or image_name(pair.image)
    return bool(share) and int(sha256(name.encode()).hexdigest()[:8], 16) % share == 0


def prepare_texts(pairs: Pairs, recipe: MiniRecipe, tower: MiniLMTexts, *, cache: Path | None = None) -> PreparedTexts:
    """Write and tokenise all texts of a run, or read them from the cache."""
    if cache is None:
        return _prepared(pairs, recipe, tower)
    path = cache / f"texts-{_key(pairs, recipe)}.npz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        prepared = _prepared(pairs, recipe, tower)
        with replacing(path) as file:
            arrays: dict[str, Any] = _arrays(prepared)
            np.savez(file, **arrays)
        return prepared
    with np.load(path) as arrays:
        texts = {kind: FlatTexts(*(arrays[f"{kind}.{part.name}"] for part in fields(FlatTexts))) for kind in KINDS}
        facts = WordFacts(*(arrays[f"facts.{part.name}"] for part in fields(WordFacts)))
        return PreparedTexts(texts, facts, arrays["sided"])


def _prepared(pairs: Pairs, recipe: MiniRecipe, tower: MiniLMTexts) -> PreparedTexts:
    spec = recipe.sample
    classes = read_classes(Path(spec.classes)) if spec.classes else ()
    lexicon = build_lexicon(pairs.items, classes=classes)
    by_rule = _texts_by_rule(pairs.items, lexicon, spec)
    owned = {
        "captions": [pair.captions for pair in pairs.items],
        "machine": [pair.machine for pair in pairs.items],
        **by_rule,
    }
    texts = {kind: flatten(own, tower, lexicon.number) for kind, own in owned.items()}
    texts["classes"] = _framed_classes(lexicon, tower)
    sided = np.array([any(_SIDES.search(text) for text in pair.captions) for pair in pairs.items], dtype=np.bool_)
    return PreparedTexts(texts, word_facts(pairs, lexicon), sided)


def _framed_classes(lexicon: Lexicon, tower: MiniLMTexts) -> FlatTexts:
    """Return every class in every frame; only the words of its name have ids."""
    owned = [[frame.format(name) for frame in CLASS_FRAMES] for name in lexicon.classes]
    flat = flatten(owned, tower, lexicon.number)
    named = [{lexicon.number.get(stem(word), NO_WORD) for word in words_of(name)} for name in lexicon.classes]
    owner = np.repeat(np.repeat(np.arange(len(owned)), flat.counts), flat.sizes)
    own = [word if word in named[place] else NO_WORD for word, place in zip(flat.words, owner, strict=True)]
    return replace(flat, words=np.array(own, dtype=np.int32))


def _texts_by_rule(
    pairs: Sequence[TrainingPair], lexicon: Lexicon, spec: MiniSample
) -> dict[str, list[tuple[str, ...]]]:
    """Return texts by rule, which do not depend on the seed; the seed draws among them."""
    maker = PhraseMaker(pairs, lexicon, similar_images(pairs, lexicon))
    weights = class_weights(text for pair in pairs for text in pair.captions)
    texts: dict[str, list[tuple[str, ...]]] = {"joined": [], "short": [], "long": [], "negatives": []}
    for item, pair in enumerate(pairs):
        chance = stream(0, "texts", item)
        banned = edits.words_of(pair.captions) | frozenset(pair.objects or ())
        for caption in pair.captions:
            wrong = list(make_negatives(caption, banned, spec.made, chance, weights=weights))
            added = maker.with_addition(caption, item, banned, chance) if chance.random() < 0.5 else None
            if added is not None:
                wrong[1:] = [added]
            texts["negatives"].append(tuple(wrong))
        texts["short"].append(tuple(maker.short(item, chance) for _ in range(spec.made)))
        texts["long"].append(tuple(maker.long(item, chance) for _ in range(spec.made)))
        texts["joined"].append((maker.joined(item, chance),))
    return texts


def _arrays(prepared: PreparedTexts) -> dict[str, Any]:
    arrays = {
        f"{kind}.{part.name}": getattr(flat, part.name)
        for kind, flat in prepared.texts.items()
        for part in fields(FlatTexts)
    }
    facts = {f"facts.{part.name}": getattr(prepared.facts, part.name) for part in fields(WordFacts)}
    return {**arrays, **facts, "sided": prepared.sided}


def _key(pairs: Pairs, recipe: MiniRecipe) -> str:
    classes = Path(recipe.sample.classes).read_text("utf-8") if recipe.sample.classes else ""
    parts = [_RULES, pairs.fingerprint, recipe.sample.made, classes, recipe.text.source]
    return blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()
