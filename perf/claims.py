"""Figures that the pages state about verdicts, near-misses, words, persons, unfamiliar images and re-encoding.

python perf/claims.py DATA [SECTION …] [--limit IMAGES] [-o CLAIMS.json]

DATA has the development halves as NAME.jsonl, and images in NAME.images.parquet. All sections by default. `near_misses`
computes the tables of the README, of docs/trust.md and of the page's *Limits*: what is said about true captions, about
the same captions with one thing changed, and about captions of other images. `-o` writes them as JSON; those of `mini`
are src/msdscore/encoders/claims.json, which the service and the tests read.
"""

import argparse
import io
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from msdscore import Scorer
from msdscore.core.evidence import LENGTHS, TYPICAL, VERDICTS, ZERO, length_class
from msdscore.forms.base import EVEN, LIKELY_WRONG, finding, numbers_of
from msdscore.scoring.rows import scores_of
from msdscore.text.words import PERSONS, content_words, each_word, stem
from msdscore_lab.bank.calibrate import share_above
from msdscore_lab.bank.lengths import parts

BATCH = 32  # images
BOUNDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
LEVELS = (0.1, 0.05, 0.02, 0.005)
PAIRS = (("man", "woman"), ("boy", "girl"), ("man", "boy"), ("woman", "girl"))
# Nouns of Flickr8k besides those of COCO's classes.
NOUNS = """
grass water beach snow ball field street mountain tree rock pool sand building wall helmet shirt river lake park road
ocean bridge fence camera hat jacket fountain swing slide stick toy flower forest sidewalk crowd guitar mud rope tent
hill cliff waterfall wave sky boat window door people
"""
PLAIN = frozenset(["water", "snow", "grass", "sand", "mud", "people"])  # without "a"
CHANGES = {  # subsets of SugarCrepe
    "replace_obj": "an object replaced",
    "add_obj": "an object added",
    "replace_att": "an attribute replaced",
    "add_att": "an attribute added",
    "replace_rel": "a relation replaced",
    "swap_obj": "objects swapped",
    "swap_att": "attributes swapped",
}
SHADES = ("likely wrong", "check", "no mark", "supported", "not judged")


class Half:
    """A development half with its images."""

    def __init__(self, scorer, folder, name, limit=None):
        self.rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        self.name, self._scorer = name, scorer
        chosen = list(dict.fromkeys(row["image"] for row in self.rows))
        self.images = chosen[:: max(1, len(chosen) // limit)][:limit] if limit else chosen
        known = frozenset(self.images)
        self.rows = [row for row in self.rows if row["image"] in known]
        files = (pq.read_table(path).to_pylist() for path in sorted(folder.glob(f"{name}.images*.parquet")))
        self._stored = {row["file_name"]: row["image"]["bytes"] for rows in files for row in rows}

    @property
    def least_familiar(self):
        """The familiarity below which an image is called unlike those that the encoder knows."""
        known = self._scorer.pipeline.bank.bank.familiarity
        return -1.0 if known is None else known.limit

    def kind_of(self, base):
        """The index of the kind of a word by its stem."""
        return self._scorer.pipeline.bank.bank.words.kind_of(base)

    def image(self, name):
        """Return the image of a name."""
        return Image.open(io.BytesIO(self._stored[name]))

    def measure(self, items, change=None):
        """Return the caption judged by its image for every (image, text, …); `change` is applied to the images."""
        pipeline, results, of_image = self._scorer.pipeline, [None] * len(items), {}
        for number, item in enumerate(items):
            of_image.setdefault(item[0], []).append(number)
        names = list(of_image)
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            pictures = [change(self.image(name)) if change else self.image(name) for name in batch]
            images = pipeline.embedder.images(pipeline.decode(pictures)).require()
            chosen = [number for name in batch for number in of_image[name]]
            texts = pipeline.embedder.texts([items[number][1] for number in chosen])
            read = [row for row in range(len(chosen)) if row not in texts.errors]
            owner = [batch.index(items[chosen[row]][0]) for row in read]
            measured = pipeline.measure(images, texts, owner, read)
            captions = [items[chosen[row]][1] for row in read]
            rows = numbers_of(measured, pipeline.form)
            scores = scores_of(pipeline, captions, rows, list(range(len(read))))
            for pair, row in enumerate(read):
                results[chosen[row]] = Judged(scores[pair], pipeline.form.units(measured, pair))
        return results


class Judged:
    """A score with the content words of its caption, those that have a p-value, and the class of its length."""

    def __init__(self, score, units):
        self.score, self.content = score, [unit for unit in units if unit.content]
        self.words = [unit for unit in self.content if unit.p_value is not None]
        self.length = length_class(len({stem(unit.text.casefold()) for unit in self.content}))

    def __getattr__(self, name):
        return getattr(self.score, name)


def shade(unit):
    """Return what the page shows about a content word."""
    if unit.p_value is None:
        return "not judged"
    found = finding(unit.text, unit.p_value, unit.probability)
    return found or ("no mark" if unit.p_value < TYPICAL else "supported")


def share(values, at_least):
    """Return the percentage of values that are at least a bound."""
    return f"{100 * np.mean(np.array(values) >= at_least):.1f}" if len(values) else "-"


def shares(values, names):
    """Return the percentage of each name among the values."""
    counts = Counter(values)
    return {name: round(100 * counts[name] / len(values), 1) for name in names} if values else {}


def near_misses(half):
    """Print and return the verdicts of true, changed and other captions, and the shades of true and changed words."""
    pairs, rated = half("dev_sugarcrepe"), half("dev_flickr8k_expert")
    items = [(row["image"], row[text]) for row in pairs.rows for text in ("caption", "negative_caption")]
    found = pairs.measure(items)
    true, changed, subsets = found[::2], found[1::2], [row["subset"] for row in pairs.rows]
    unrelated = [(row["image"], row["caption"]) for row in rated.rows if max(row["expert"]) == 1]
    once = {(row["image"], row["caption"]): own for row, own in zip(pairs.rows, true, strict=True)}
    captions = [_verdicts("true captions", list(once.values())), _verdicts("the same with one thing changed", changed)]
    for subset, name in CHANGES.items():
        both = [(one, two) for one, two, kind in zip(true, changed, subsets, strict=True) if kind == subset]
        higher = [one.match > two.match for one, two in both]
        captions.append(_verdicts(name, [two for _, two in both]) | {"true one higher": float(share(higher, 1))})
    captions.append(_verdicts("captions of other images", rated.measure(unrelated)))

    shades = {"every other word": []}
    for one, two, subset in zip(true, changed, subsets, strict=True):
        kind = {"obj": "object", "att": "attribute", "rel": "relation"}[subset[-3:]]
        stems = [{stem(unit.text.casefold()) for unit in own.content} for own in (one, two)]
        for own, others, said in ((one, stems[1], "true"), (two, stems[0], "changed")):
            for unit in own.content:
                exchanged = stem(unit.text.casefold()) not in others
                name = f"{said} {kind}" if exchanged else "every other word"
                shades.setdefault(name, []).append(unit)
    order = [*(f"{said} {kind}" for kind in ("object", "attribute", "relation") for said in ("true", "changed"))]
    words = [
        {"name": name, "n": len(shades[name])} | shares([shade(unit) for unit in shades[name]], SHADES)
        for name in (*order, "every other word")
        if name in shades
    ]
    columns = ("name", "n", *reversed(VERDICTS), "no verdict", "true one higher")
    for names, rows in ((columns, captions), (("name", "n", *SHADES), words)):
        print("|", " | ".join(names), "|\n|" + "---|" * len(names))
        for row in rows:
            print("|", " | ".join(str(row.get(name, "")) for name in names), "|", flush=True)
    every = [(name, shade(unit)) for name, units in shades.items() for unit in units]
    marks = [{"name": "all words", "n": len(every)} | _changed(name for name, _ in every)]
    for mark in SHADES:
        names = [name for name, shown in every if shown == mark]
        marks.append({"name": mark, "n": len(names)} | _changed(names))
    for row in marks:
        print(f"{row['name']}: {row['changed']} % of {row['n']} are changed words")
    return {"captions": captions, "words": words, "marks": marks}


def _changed(names):
    """Return the share of changed words."""
    return {"changed": float(share([name.startswith("changed") for name in names], 1))}


def _verdicts(name, found):
    """Return the share of each verdict among captions."""
    said = [own.verdict or "no verdict" for own in found]
    return {"name": name, "n": len(found)} | shares(said, (*reversed(VERDICTS), "no verdict"))


def verdicts(half):
    """Print the share of captions with a match of at least each bound."""
    groups = {}
    pairs = half("dev_sugarcrepe")
    for subset in (None, "replace_obj", "add_obj"):
        rows = [row for row in pairs.rows if row["subset"] == subset or subset is None]
        text = "caption" if subset is None else "negative_caption"
        groups[f"SugarCrepe {subset or 'true'}"] = pairs, list({(row["image"], row[text]) for row in rows})
    systems = half("dev_thumb")
    groups["THumB people"] = (
        systems,
        [(row["image"], row["caption"]) for row in systems.rows if row["system"] == "Human"],
    )
    people = half("val_flickr8k")
    groups["Flickr8k people"] = people, [(row["image"], row["captions"][0]) for row in people.rows]
    rated = half("dev_flickr8k_expert")
    none = [(row["image"], row["caption"]) for row in rated.rows if max(row["expert"]) == 1]
    groups["Expert, unrelated"] = rated, none
    others = half("dev_pascal50s")
    groups["Pascal, of other images"] = (
        others,
        [(row["image"], row["captions"][1 - row["label"]]) for row in others.rows if row["category"] == "HI"],
    )
    print("verdicts | n |", " | ".join(map(str, BOUNDS)))
    for name, (own, items) in groups.items():
        matches = [found.match for found in own.measure(items) if found]
        print(name, "|", len(matches), "|", " | ".join(share(matches, bound) for bound in BOUNDS), flush=True)


def nouns(half, folder):
    """Print how captions of one noun are judged: nouns that three of five people name, and that nobody does."""
    synonyms = (folder / "coco_object_synonyms.txt").read_text(encoding="utf-8").replace("\n", ",").split(",")
    spelled = {stem(word): word for word in sorted({*map(str.strip, synonyms), *NOUNS.split()}) if word.isalpha()}
    people, draw = half("val_flickr8k"), Random(0)
    said = {
        row["image"]: Counter(s for text in row["captions"] for s in {*map(stem, each_word(text))})
        for row in people.rows
    }
    frequent = Counter(base for counts in said.values() for base in counts if base in spelled)
    items = []
    for name, counts in said.items():
        absent = [base for base in frequent if not counts[base] and not (base in PERSONS and PERSONS & counts.keys())]
        drawn = sorted(set(draw.choices(absent, [frequent[base] for base in absent], k=4)))
        chosen = [(base, True) for base in counts if base in spelled and counts[base] >= 3]
        for base, true in (*chosen, *((base, False) for base in drawn)):
            noun = spelled[base]
            article = "" if noun in PLAIN else "an " if noun[0] in "aeiou" else "a "
            items.append((name, article + noun, true, base in PERSONS))
    found = people.measure(items)
    print("nouns | n | match >= 0.3 | match >= 0.5 | orange | likely wrong | probability >= 0.5")
    for name, wanted in {"present": True, "present, persons": True, "present, other": True, "absent": False}.items():
        chosen = [
            own for own, (*_, true, person) in zip(found, items, strict=True)
            if true == wanted and ("," not in name or person == ("persons" in name))
        ]  # fmt: skip
        matches, words = [own.match for own in chosen], [own.words[0] for own in chosen if own.words]
        orange = [word.p_value < ZERO for word in words]
        wrong = [shade(word) == LIKELY_WRONG for word in words]
        print(
            name, "|", len(chosen), "|", share(matches, 0.3), "|", share(matches, 0.5), "|", share(orange, 1), "|",
            share(wrong, 1), "|", share([word.probability for word in words], EVEN), flush=True,
        )  # fmt: skip
    for name in ("match", "msd", "similarity"):
        sides = (
            [getattr(own, name) for own, item in zip(found, items, strict=True) if item[2] is true]
            for true in (True, False)
        )
        print(f"AUC of {name} {100 * share_above(*map(np.array, sides)):.1f}")


def words(half, name="val_flickr8k"):
    """Print the share of true words below 0.1, by kind and class of length, in captions and in parts of them."""
    people, draw = half(name), Random(1)
    items, said, persons = [], {}, {}
    for row in people.rows:
        texts = row["captions"]
        said[row["image"]] = Counter(stem(word) for text in texts for word in content_words(text))
        persons[row["image"]] = sum(not PERSONS.isdisjoint(map(stem, each_word(text))) for text in texts)
        by_length = {}
        for text in texts:
            items.append((row["image"], text, "captions"))
            for part, count in parts(text):
                by_length.setdefault(length_class(count), set()).add(part)
        for some in by_length.values():
            items += [(row["image"], part, "parts") for part in draw.sample(sorted(some), min(2, len(some)))]
    below = {}
    for own, (name, _, whole) in zip(people.measure(items), items, strict=True):
        for word in own.words if own else ():
            base = stem(word.text.casefold())
            person = base in PERSONS
            if (persons[name] if person else said[name][base]) >= 2:
                for kind in ("persons" if person else people.kind_of(base), "all"):
                    for length in (own.length, "all"):
                        below.setdefault((whole, kind, length), []).append(word.p_value < ZERO)
    print(f"words of {people.name} below {ZERO}: kind |", " | ".join(map(str, (*LENGTHS, "all"))))
    for whole in ("captions", "parts"):
        for kind in (0, 1, 2, "persons", "all"):
            cells = (below.get((whole, kind, length), []) for length in (*range(len(LENGTHS)), "all"))
            print(whole, kind, "|", " | ".join(f"{share(cell, 1)} ({len(cell)})" for cell in cells), flush=True)


def persons(half):
    """Print how often the right word for a person scores above the wrong one, and what is said about both."""
    people = half("val_flickr8k")
    print("persons | images | alone | in a caption | right word orange | wrong word orange")
    for first, second in PAIRS:
        items = []
        for row in people.rows:
            spoken = [frozenset(each_word(text)) for text in row["captions"]]
            for right, wrong in ((first, second), (second, first)):
                if sum(right in text for text in spoken) < 4 or any(wrong in text for text in spoken):
                    continue
                caption = next(text for text in row["captions"] if right in each_word(text))
                lower = caption.lower().split()
                other = " ".join(wrong if word == right else word for word in lower)
                items += [(row["image"], text) for text in (f"a {right}", f"a {wrong}", " ".join(lower), other)]
        found = people.measure(items)
        alone, inside = (
            [found[start].msd > found[start + 1].msd for start in range(at, len(found), 4)] for at in (0, 2)
        )
        orange = ([own.words[0].p_value < ZERO for own in found[at::4] if own.words] for at in (0, 1))
        print(
            first,
            second,
            "|",
            len(alone),
            "|",
            share(alone, 1),
            "|",
            share(inside, 1),
            "|",
            *(share(own, 1) + " |" for own in orange),
            flush=True,
        )


def levels(half):
    """Print the share of true and of false captions that each level flags."""
    pairs = half("dev_sugarcrepe")
    rows = [row for row in pairs.rows if row["subset"] in ("replace_obj", "replace_att")]
    items = [(row["image"], row[text]) for row in rows for text in ("caption", "negative_caption")]
    found = pairs.measure(items)
    print(f"levels, {len(rows)} pairs | true captions | false captions")
    for level in LEVELS:
        for name, rule in {
            "p below": lambda own, word, level: word.p_value < level,
            "likely wrong": is_likely_wrong,
            "likely wrong, off topic": lambda own, word, level: (
                own.verdict == VERDICTS[0] and is_likely_wrong(own, word, level)
            ),
        }.items():
            flags = [any(rule(own, word, level) for word in own.words) for own in found]
            print(name, level, "|", share(flags[::2], 1), "|", share(flags[1::2], 1), flush=True)


def is_likely_wrong(own, word, level):
    """Whether a word is called likely wrong if `level` is the p-value below which there is doubt."""
    return finding(word.text, word.p_value, word.probability, level) == LIKELY_WRONG


def invented(half):
    """Print the mean of `invented` for true, half wrong and wrong captions, and for systems with 30 % wrong ones."""
    people = half("val_flickr8k")
    items = []
    for number, row in enumerate(people.rows):
        true = row["captions"][0]
        wrong = people.rows[(number + len(people.rows) // 2) % len(people.rows)]["captions"]
        items += [(row["image"], text) for text in (true, f"{true} {wrong[0]}", wrong[0], f"{wrong[0]} {wrong[1]}")]
    values = np.array([own.invented for own in people.measure(items)]).reshape(-1, 4)
    names = ("true", "half wrong", "wrong", "wrong, twice as long")
    print("invented |", " | ".join(f"{name} {mean:.2f}" for name, mean in zip(names, values.mean(axis=0), strict=True)))
    print(f"wrong above half wrong in {share(values[:, 3] > values[:, 1], 1)} % of images")
    mixed = np.where(np.arange(len(values)) % 10 < 3, values[:, 2], values[:, 0])
    print(f"systems: {values[:, 0].mean():.3f} without wrong captions, {mixed.mean():.3f} with 30 %")


def familiarity(half):
    """Print the share of images of every half that are unlike those that the encoder knows."""
    print("familiarity | images | below the limit | AUC for a match of true captions under 0.5")
    for name in ("val_flickr8k", "dev_thumb", "dev_pascal50s", "dev_composite", "dev_rsicd"):
        own = half(name)
        first = {row["image"]: row.get("caption") or row["captions"][0] for row in reversed(own.rows)}
        found = own.measure(list(first.items()))
        values, matches = (np.array([getattr(each, column) for each in found]) for column in ("familiarity", "match"))
        area = share_above(values[matches >= 0.5], values[matches < 0.5])
        print(name, "|", len(values), "|", share(values < own.least_familiar, 1), "|", f"{100 * area:.0f}", flush=True)


def encodings(half):
    """Print how far match moves if the image is encoded or resized."""
    people = half("val_flickr8k")
    items = [(row["image"], row["captions"][0]) for row in people.rows]
    before = people.measure(items)
    print("encodings | median change of match | 90th percentile | greatest | other verdict")
    changes = {"JPEG 95": jpeg, "JPEG 75": partial(jpeg, quality=75), "half size": partial(resized, scale=0.5)}
    for name, change in (changes | {"90 % size": partial(resized, scale=0.9)}).items():
        after = people.measure(items, change)
        moved = np.array([abs(one.match - two.match) for one, two in zip(before, after, strict=True)])
        other = [one.verdict != two.verdict for one, two in zip(before, after, strict=True)]
        middle, high = np.quantile(moved, (0.5, 0.9))
        print(name, "|", f"{middle:.3f} | {high:.3f} | {moved.max():.3f} |", share(other, 1), flush=True)


def jpeg(image, quality=95):
    """Return the image as JPEG decodes it."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue()))


def resized(image, scale):
    """Return a smaller image."""
    return image.convert("RGB").resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)


def main():
    """Read the arguments, print the sections, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = (near_misses, verdicts, nouns, words, persons, levels, invented, familiarity, encodings)
    known: dict[str, Callable[..., Any]] = {section.__name__: section for section in sections}
    parser.add_argument("data", type=Path)
    parser.add_argument("sections", nargs="*", metavar="SECTION", choices=[*known, []])
    parser.add_argument("--limit", type=int, help="number of images per half")
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--bank", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="file for the tables of near_misses")
    given = parser.parse_args()
    scorer = Scorer(given.encoder, bank=given.bank)
    print(scorer.signature)
    half = partial(Half, scorer, given.data, limit=given.limit)
    for name in given.sections or known:
        tables = known[name](half, given.data) if name == "nouns" else known[name](half)
        if name == "near_misses" and given.output is not None:
            limit = f" --limit {given.limit}" if given.limit else ""
            facts = {
                "signature": scorer.signature,
                "command": f"python perf/claims.py DATA near_misses{limit} -o CLAIMS.json",
                "date": datetime.now(UTC).date().isoformat(),
            }
            text = json.dumps(facts | tables, indent=1, ensure_ascii=False)
            given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
