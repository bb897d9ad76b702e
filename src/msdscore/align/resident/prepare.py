"""Everything a resident run reads, made once: texts by rule, tokens, facts about words; kept in a file if asked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.align.data.lexicon import Lexicon, build_lexicon, read_classes, words_of
from msdscore.align.data.negatives import all_words, class_weights, make_negatives
from msdscore.align.data.pairs import Pairs, TrainingPair, picture_name
from msdscore.align.data.phrases import CLASS_FRAMES, PhraseMaker, similar_pictures
from msdscore.align.data.views import says_side
from msdscore.align.recipe import Recipe, SampleSpec
from msdscore.align.repeatable import stream
from msdscore.align.resident.texts import NO_WORD, FlatTexts, flatten
from msdscore.align.resident.towers import DeviceTexts
from msdscore.align.resident.words import WordFacts, word_facts
from msdscore.encoders.text.words import stem
from msdscore.io.atomic import replacing

KINDS = ("captions", "machine", "joined", "short", "long", "negatives", "classes")
_RULES = 2  # raise when texts by rule change, so that old files are not taken


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts of every kind as tokens, facts about their words, and which pictures must not be mirrored."""

    texts: dict[str, FlatTexts]
    facts: WordFacts
    sided: npt.NDArray[np.bool_]


def train_pairs(pairs: Pairs, spec: SampleSpec) -> Pairs:
    """The pairs that are trained on: all but one of `held_out`, chosen by the hash of the picture's name."""
    return pairs.take([item for item, pair in enumerate(pairs.items) if not is_held_out(pair, spec.held_out)])


def is_held_out(pair: TrainingPair, share: int) -> bool:
    """Whether a picture is kept out of training, for what is fitted after it; `share` 0 keeps none out."""
    name = pair.name or picture_name(pair.picture)
    return bool(share) and int(sha256(name.encode()).hexdigest()[:8], 16) % share == 0


def prepare_texts(pairs: Pairs, recipe: Recipe, tower: DeviceTexts, *, cache: Path | None = None) -> PreparedTexts:
    """Make all texts of a run, or take them from the cache."""
    if cache is None:
        return _make(pairs, recipe, tower)
    path = cache / f"texts-{_key(pairs, recipe)}.npz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        found = _make(pairs, recipe, tower)
        with replacing(path) as file:
            arrays: dict[str, Any] = _arrays(found)
            np.savez(file, **arrays)
        return found
    with np.load(path) as arrays:
        texts = {kind: FlatTexts(*(arrays[f"{kind}.{part.name}"] for part in fields(FlatTexts))) for kind in KINDS}
        facts = WordFacts(*(arrays[f"facts.{part.name}"] for part in fields(WordFacts)))
        return PreparedTexts(texts, facts, arrays["sided"])


def _make(pairs: Pairs, recipe: Recipe, tower: DeviceTexts) -> PreparedTexts:
    spec = recipe.sample
    classes = read_classes(Path(spec.classes)) if spec.classes else ()
    lexicon = build_lexicon(pairs.items, classes=classes)
    made = _made_texts(pairs.items, lexicon, spec)
    owned = {
        "captions": [pair.captions for pair in pairs.items],
        "machine": [pair.machine for pair in pairs.items],
        **made,
    }
    texts = {kind: flatten(own, tower, lexicon.number) for kind, own in owned.items()}
    texts["classes"] = _framed_classes(lexicon, tower)
    sided = np.array([says_side(pair.captions) for pair in pairs.items], dtype=np.bool_)
    return PreparedTexts(texts, word_facts(pairs, lexicon), sided)


def _framed_classes(lexicon: Lexicon, tower: DeviceTexts) -> FlatTexts:
    """Every class in every frame; only the words of its own name count."""
    owned = [[frame.format(name) for frame in CLASS_FRAMES] for name in lexicon.classes]
    flat = flatten(owned, tower, lexicon.number)
    named = [{lexicon.number.get(stem(word), NO_WORD) for word in words_of(name)} for name in lexicon.classes]
    owner = np.repeat(np.repeat(np.arange(len(owned)), flat.counts), flat.sizes)
    own = [word if word in named[place] else NO_WORD for word, place in zip(flat.words, owner, strict=True)]
    return replace(flat, words=np.array(own, dtype=np.int32))


def _made_texts(pairs: Sequence[TrainingPair], lexicon: Lexicon, spec: SampleSpec) -> dict[str, list[tuple[str, ...]]]:
    """Texts by rule: the same ones for every seed, which draws among them."""
    maker = PhraseMaker(pairs, lexicon, similar_pictures(pairs, lexicon))
    weights = class_weights(text for pair in pairs for text in pair.captions)
    found: dict[str, list[tuple[str, ...]]] = {"joined": [], "short": [], "long": [], "negatives": []}
    for item, pair in enumerate(pairs):
        chance = stream(0, "texts", item)
        banned = all_words(pair.captions) | frozenset(pair.objects or ())
        for caption in pair.captions:
            wrong = list(make_negatives(caption, banned, spec.made, chance, weights=weights))
            added = maker.with_addition(caption, item, banned, chance) if chance.random() < 0.5 else None
            if added is not None:
                wrong[1:] = [added]
            found["negatives"].append(tuple(wrong))
        found["short"].append(tuple(maker.short(item, chance) for _ in range(spec.made)))
        found["long"].append(tuple(maker.long(item, chance) for _ in range(spec.made)))
        found["joined"].append((maker.joined(item, chance),))
    return found


def _arrays(found: PreparedTexts) -> dict[str, Any]:
    arrays = {
        f"{kind}.{part.name}": getattr(flat, part.name)
        for kind, flat in found.texts.items()
        for part in fields(FlatTexts)
    }
    facts = {f"facts.{part.name}": getattr(found.facts, part.name) for part in fields(WordFacts)}
    return {**arrays, **facts, "sided": found.sided}


def _key(pairs: Pairs, recipe: Recipe) -> str:
    classes = Path(recipe.sample.classes).read_text("utf-8") if recipe.sample.classes else ""
    parts = [_RULES, pairs.fingerprint, recipe.sample.made, classes, recipe.text.source]
    return blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()
