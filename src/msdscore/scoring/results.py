"""Numbers and scores of captions: printing, and conversion to arrays, rows, Arrow and pandas."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import VERDICT_AT, limits_text, verdict
from msdscore.errors import ConfigError, InputError, require
from msdscore.forms.base import CHECK, LIKELY_WRONG, Floats
from msdscore.forms.registry import COLUMNS, columns_shown, heading, score_name
from msdscore.scoring import references
from msdscore.text.captions import caption_language
from msdscore.text.warnings import NOT_ENGLISH, withheld

if TYPE_CHECKING:
    import pandas
    import pyarrow

Ints = npt.NDArray[np.int64]

NAN = math.nan
WORDS_NAMED = 3  # words of each finding that a headline names
# Why a scored caption lacks a number.
WHY_MISSING = {"match": "no match: this bank and these settings have none", "ref_msd": references.NO_REFERENCES}


def why_missing(name: str, warnings: Sequence[str]) -> str | None:
    """Return why a scored caption lacks a number.

    >>> why_missing("match", [NOT_ENGLISH])
    'not English, which this encoder reads'
    """
    return "not English, which this encoder reads" if NOT_ENGLISH in warnings else WHY_MISSING.get(name)


class Score:
    """The score of one caption. A number that the score does not have is NaN, and null in files and JSON.

    Higher is better:

    - `msd`, `soft_msd` and `similarity`. `soft_msd` is gated by the uncertainty of the set of `candidates` captions;
      for a single caption it equals `msd`.
    - `precision`: is what the caption says true of this image? In nats per word; below zero there is more doubt than
      support.
    - `information`: how much does it say about this image? In standard deviations over background images.
    - `match`: the probability that the caption belongs to this image rather than to another one of its kind, and
      `verdict`: the same in words. The encoder's bank must be calibrated for it; the paper's forms have none. Neither
      says that every word is true: `doubtful` has the words to check, and `headline` both.

    Lower is better: `invented`, the expected share of the caption's judged words that the image does not support;
    `penalty`, what doubtful words subtract from the score before the weight; and `negation`, how
    much of the similarity comes from words that the caption negates ("no dog").

    The paper's forms have none of these four, but two divergences in nats, lower is better: `coverage`, what the
    image shows and the caption omits, and `support`, what the caption says and the image does not show; `divergence` is
    the two, weighted by `beta`.

    Neither: `uncertainty` is that of the candidate set (1: the similarities do not separate the captions), `length`
    the number of tokens that were read, `windows` the number of parts in which a long caption was read.

    It is a view of one row of `Scores`: every number is an attribute, and `columns` names those that scores with these
    settings have. `warnings` are remarks on the score, such as words
    that the encoder cannot read. `doubtful` maps the words in doubt to `likely wrong` or `check`, the least supported
    first; it is None if words are not judged, and with references, for which an explanation judges them. If the
    caption is not `readable`, the numbers mean nothing. If there is an `error`, there was nothing to score.
    """

    __slots__ = ("_row", "_scores")
    __hash__ = None  # type: ignore[assignment]  # equal scores may be views of different tables

    def __init__(self, scores: "Scores", row: int) -> None:
        self._scores, self._row = scores, row

    def __getattr__(self, name: str) -> Any:
        if name in COLUMNS and COLUMNS[name].kind in ("number", "count"):
            column = self._scores.columns.get(name)
            if column is not None:
                return column[self._row].item()
            return 0 if COLUMNS[name].kind == "count" else NAN
        raise AttributeError(f"a score has no {name!r}; its numbers are {', '.join(self.columns)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.columns]

    def __reduce__(self) -> tuple[Any, ...]:
        return Score, (self._scores[self._row : self._row + 1], 0)

    @property
    def caption(self) -> str:
        """The caption."""
        return self._scores.captions[self._row]

    @property
    def signature(self) -> str:
        """Everything that can change the score, in one line."""
        return self._scores.signature

    @property
    def columns(self) -> tuple[str, ...]:
        """The numbers that scores with these settings have."""
        return tuple(self._scores.columns)

    @property
    def candidates(self) -> int:
        """Number of captions of the candidate set that were scored."""
        return int(self._scores.candidates[self._row])

    @property
    def warnings(self) -> list[str]:
        """Remarks on the caption and the image."""
        return list(self._scores.warnings[self._row])

    @property
    def error(self) -> str | None:
        """Why there was nothing to score; None for a score."""
        return self._scores.errors[self._row]

    @property
    def worst(self) -> tuple[str, ...]:
        """The least supported words, if they were requested."""
        return self._scores.worst[self._row]

    @property
    def doubtful(self) -> Mapping[str, str] | None:
        """The words in doubt, each `likely wrong` or `check`; None if words are not judged."""
        return self._scores.doubtful[self._row] if self._scores.doubtful else None

    def with_doubtful(self, doubtful: Mapping[str, str] | None) -> "Score":
        """Return the score with other words in doubt."""
        return Score(replace(self._scores[self._row : self._row + 1], doubtful=(doubtful,)), 0)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.columns)
        return f"Score(caption={self.caption!r}, {numbers}, candidates={self.candidates}, error={self.error!r})"

    def __eq__(self, other: object) -> bool:
        # Two missing numbers are equal, unlike NaN.
        return self.to_dict() == other.to_dict() if isinstance(other, Score) else NotImplemented

    def __str__(self) -> str:
        if self.error is not None:
            return f"not scored: {self.error}"
        others = [name for name in shown([self]) if name not in ("ref_msd", "msd", "soft_msd", "verdict")]
        title = score_name(self.signature)
        soft = f"  Soft-{title} {self.soft_msd:+.4f} (among {self.candidates})" if self.candidates > 1 else ""
        line = f"{title} {self.msd:+.4f}{soft}"
        if self.reference_count > 0 and not math.isnan(self.reference_score):
            has_image = not math.isnan(self.msd)
            line = (
                f"Ref-{title} {self.ref_msd:+.4f}  {line}"
                if has_image
                else f"reference score {self.reference_score:+.4f}"
            )
            line += f"  references {self.reference_count:.0f}"
        line += "".join(f"  {COLUMNS[name].heading} {cell(self, name)}" for name in others)
        headline = [self.headline] if self.headline else []
        return "\n".join([*headline, line, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def has_match(self) -> bool:
        """Whether the match is known."""
        return not math.isnan(self.match)

    @property
    def verdict(self) -> str | None:
        """The match in words: on topic, unsure or off topic; None if a warning withholds it."""
        return self._scores.verdict(self._row)

    @property
    def language(self) -> str | None:
        """The ISO 639-1 code of the caption's language; None if it is too short, in doubt, or was not scored."""
        return self._scores.language(self._row)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Warnings that withhold the verdict: the text is no caption, or the image unlike those of the encoder."""
        return withheld(self.warnings)

    @property
    def headline(self) -> str:
        """The verdict with the match, and the words in doubt.

        Such as `on topic (83 %) · check: blue`. Without a verdict, what withholds it; without judged words, only the
        first half; empty without a match.
        """
        if not self.has_match:
            return ""
        share = f"{100 * self.match:.0f} %"
        if self.verdict is None:
            return f"no verdict ({share}): {', '.join(self.withheld)}"
        return " · ".join([f"{self.verdict} ({share})", *self.word_notes])

    @property
    def word_notes(self) -> tuple[str, ...]:
        """The words in doubt, or that no word stands out; empty without words.

        Such as `check: blue`, or `no word stands out`, which is not said of a caption whose verdict is withheld.
        """
        return self._scores.word_notes(self._row)

    @property
    def readable(self) -> bool:
        """Whether the caption is in a language that the encoder was trained on."""
        return NOT_ENGLISH not in self.warnings

    def row(self) -> dict[str, Any]:
        """Return the added columns of a scored row; None for a missing number, and for all of a row with an error."""
        chosen = [name for name in COLUMNS if name in self.columns or COLUMNS[name].kind in ("text", "list")]
        if self.error is not None:
            return dict.fromkeys(chosen) | {"warnings": list(self.warnings), "error": self.error}
        row = {name: known(getattr(self, name)) for name in chosen}
        return row | {"word_notes": list(self.word_notes), "warnings": list(self.warnings)}

    def to_dict(self) -> dict[str, Any]:
        """Return caption, numbers, candidates and signature as plain values for JSON; None for a missing number."""
        return {"caption": self.caption, **self.row(), "candidates": self.candidates, "signature": self.signature}

    def _repr_html_(self) -> str:
        return html_table([self], self.signature)


def known(value: Any) -> Any:
    """Return a value, or None for NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def shown(scores: Sequence[Score]) -> list[str]:
    """Return the columns of a table of these scores, without those that no score has.

    Soft-MSD of single captions, which equals MSD, and a negation of zero, as most captions have, are not shown.
    """
    hidden = set() if any(score.candidates > 1 for score in scores) else {"soft_msd"}
    hidden |= set() if any(score.negation > 0 for score in scores) else {"negation"}
    return [
        name
        for name in columns_shown()
        if name not in hidden and any(known(getattr(score, name, None)) is not None for score in scores)
    ]


def cell(score: Score, name: str) -> str:
    """Format one number of a table of scores; empty if it is missing."""
    value = known(getattr(score, name, None))
    return "" if value is None else format(value, COLUMNS[name].format)


def html_table(scores: Sequence[Score], signature: str) -> str:
    """Return a table of scores and their signature as HTML for notebooks."""
    names = shown(scores)
    head = "".join(f"<th>{name}</th>" for name in (*names, "caption"))
    rows = [
        "".join(f"<td style='text-align:right'>{cell(score, name)}</td>" for name in names)
        + f"<td style='text-align:left'>{escape(score.caption)}</td>"
        for score in scores
    ]
    body = "".join(f"<tr>{row}</tr>" for row in (head, *rows))
    return f"<table>{body}</table><small><code>{escape(signature)}</code></small>"


_ARRAYS = ("candidates", "sets", "images")  # fields of `Scores` with one value per row
_TUPLES = ("captions", "warnings", "errors", "worst", "sources", "doubtful")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of captions as arrays, in the order of the captions; see `Score` for which direction is better.

    `columns` has every number by name, each also an attribute; NaN (counts: 0) for captions that have an error in
    `errors`. `candidates` is the number of captions of each caption's candidate set that were scored. A slice or
    an array of indices returns `Scores`, an index one `Score`; `a + b` joins two with the same signature.

    >>> from PIL import Image
    >>> from msdscore import Scorer
    >>> scores = Scorer("toy").rank(Image.new("RGB", (64, 64), "red"), ["a blue square", "a red square"])
    >>> bool(scores.msd[1] > scores.msd[0]), len(scores[1:])
    (True, 1)
    """

    captions: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[Any]]
    candidates: Ints
    warnings: tuple[tuple[str, ...], ...]
    errors: tuple[str | None, ...]
    signature: str
    sets: Ints  # equal for the captions of one candidate set
    images: Ints  # equal for the captions of one image, 0 for none
    worst: tuple[tuple[str, ...], ...]  # the least supported words, if they were requested
    sources: tuple[Any, ...] = ()  # the images of `Scorer.rank_images`, one per row
    doubtful: tuple[Mapping[str, str] | None, ...] = ()  # one per row, or none at all
    verdict_at: tuple[float, float] = VERDICT_AT

    @classmethod
    def join(cls, parts: "Sequence[Scores]") -> "Scores":
        """Join scores of one signature, of which some may have numbers that others lack.

        Raises:
            ConfigError: They have different signatures.
        """
        if len(parts) == 1:
            return parts[0]
        signatures = dict.fromkeys(references.unsigned(part.signature) for part in parts)
        if len(signatures) > 1:
            raise ConfigError(
                f"expected scores of one signature to join, got {len(signatures)}: {'; '.join(signatures)}"
            )
        names = [name for name in COLUMNS if any(name in part.columns for part in parts)]
        columns = {
            name: np.concatenate([part.columns.get(name, np.full(len(part), np.nan)) for part in parts])
            for name in names
        }
        counts, (signature,) = columns.get(references.NAMES[0]), signatures
        signature = signature if counts is None else references.signed(signature, counts)
        joined: dict[str, Any] = {}
        for name in (*_ARRAYS, *_TUPLES):
            values = [getattr(part, name) for part in parts]
            is_known = all(len(some) == len(part) for some, part in zip(values, parts, strict=True))
            joined[name] = np.concatenate(values) if name in _ARRAYS else tuple(chain(*values)) if is_known else ()
        return replace(parts[0], columns=columns, signature=signature, **joined)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        # Attributes that pickle and copy look for on a bare object must not read the mapping.
        columns = {} if name.startswith("_") or name == "columns" else self.columns
        if name in columns:
            return columns[name]
        raise AttributeError(f"these scores have no {name!r}, only {', '.join(columns)}")

    @property
    def msd(self) -> Floats:
        """MSD of every caption; higher is better."""
        return self.columns["msd"]

    @property
    def soft_msd(self) -> Floats:
        """Soft-MSD of every caption within its candidate set; higher is better."""
        return self.columns["soft_msd"]

    @property
    def similarity(self) -> Floats:
        """Cosine of the pooled vectors; higher is better."""
        return self.columns["similarity"]

    @property
    def match(self) -> Floats:
        """The probability that each caption belongs to its image; NaN if it is not known."""
        return self.columns["match"]

    def verdict(self, row: int) -> str | None:
        """Return the match of a row in words; None if it is missing, or if a warning withholds it."""
        match, warnings = self.columns["match"][row].item(), self.warnings[row]
        if math.isnan(match):
            return None
        return verdict(match, at=self.verdict_at, withheld=bool(warnings) and bool(withheld(warnings)))

    def word_notes(self, row: int) -> tuple[str, ...]:
        """Return the words in doubt of a row, or that no word stands out; empty without judged words."""
        doubtful = self.doubtful[row] if self.doubtful else None
        if doubtful is None:
            return ()
        notes = []
        for finding in (LIKELY_WRONG, CHECK):
            words = [word for word, found in doubtful.items() if found == finding]
            more = f" and {len(words) - WORDS_NAMED} more" if len(words) > WORDS_NAMED else ""
            notes += [f"{finding}: {', '.join(words[:WORDS_NAMED])}{more}"] if words else []
        return tuple(notes) or (() if withheld(self.warnings[row]) else ("no word stands out",))

    def language(self, row: int) -> str | None:
        """Return the ISO 639-1 code of the language of a caption; None if it is in doubt, or was not scored."""
        return None if self.errors[row] is not None else caption_language(self.captions[row])

    def all_word_notes(self) -> list[tuple[str, ...] | None]:
        """Return the notes on the words of every row; None for a row with an error."""
        return [None if error is not None else self.word_notes(row) for row, error in enumerate(self.errors)]

    @property
    def failed(self) -> int:
        """Number of captions that could not be scored."""
        return sum(error is not None for error in self.errors)

    def __len__(self) -> int:
        return len(self.captions)

    @overload
    def __getitem__(self, index: int) -> Score: ...

    @overload
    def __getitem__(self, index: slice | Ints) -> "Scores": ...

    def __getitem__(self, index: int | slice | Ints) -> "Score | Scores":
        if isinstance(index, slice | np.ndarray):
            columns = {name: values[index] for name, values in self.columns.items()}
            chosen: dict[str, Any] = {name: getattr(self, name)[index] for name in _ARRAYS}
            for name in _TUPLES:
                values = getattr(self, name)  # none of `sources` and `doubtful` if they are not known
                if isinstance(index, slice):
                    chosen[name] = values[index]
                else:
                    chosen[name] = tuple(values[row] for row in index.tolist() if values)
            return replace(self, columns=columns, **chosen)
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected an index below {len(self)}, got {index}")
        return Score(self, index % len(self))

    def __iter__(self) -> Iterator[Score]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: "Scores") -> "Scores":
        return Scores.join([self, other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scores):
            return NotImplemented
        first, second = (
            (side.captions, side.candidates.tolist(), side.warnings, side.errors, side.signature, set(side.columns))
            for side in (self, other)
        )
        return first == second and all(
            np.array_equal(values, other.columns[name], equal_nan=True) for name, values in self.columns.items()
        )

    __hash__ = None  # type: ignore[assignment]  # arrays can be changed

    @property
    def ranking(self) -> tuple[int, ...]:
        """Indices of the captions from best to worst, failed ones last; equal scores keep their order.

        By Ref-MSD if all have it, by the reference score without an image, else by Soft-MSD: a caption that equals its
        only reference has no Ref-MSD.
        """
        scored = [number for number, error in enumerate(self.errors) if error is None]
        preferred = (name for name in ("ref_msd", "reference_score") if name in self.columns and scored)
        column = next((name for name in preferred if not np.isnan(self.columns[name][scored]).any()), "soft_msd")
        return tuple(np.argsort(-self.columns[column], kind="stable").tolist())

    @property
    def best(self) -> Any:
        """The caption that is first in the ranking, or the image under `Scorer.rank_images`.

        Raises:
            InputError: If none could be scored.
        """
        first = self.ranking[0] if len(self) else None
        if first is None or self.errors[first] is not None:
            why = f"; the first: {self.errors[0]}" if self.errors else ""
            raise InputError(f"none of {len(self)} captions could be scored, so none is the best{why}")
        return self.sources[first] if self.sources else self.captions[first]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per caption, with the caption and the added columns."""
        return [{"caption": score.caption, **score.row()} for score in self]

    def to_dict(self) -> dict[str, Any]:
        """The signature, limits of verdicts, and one dictionary per caption under `scores`: ready for JSON."""
        return {"signature": self.signature, "verdict_at": list(self.verdict_at), "scores": self.rows()}

    def to_arrow(self) -> "pyarrow.Table":
        """An Arrow table whose schema carries the signature."""
        pyarrow = require("pyarrow", extra="files")
        failed = np.array([error is not None for error in self.errors], dtype=bool)
        names = [name for name in COLUMNS if name in self.columns or COLUMNS[name].kind in ("text", "list")]
        columns = {name: pyarrow.array(self.columns[name], mask=failed) for name in names if name in self.columns}
        columns |= {"verdict": pyarrow.array(map(self.verdict, range(len(self))), pyarrow.string())}
        columns |= {"word_notes": pyarrow.array(self.all_word_notes(), pyarrow.list_(pyarrow.string()))}
        columns |= {"language": pyarrow.array(map(self.language, range(len(self))), pyarrow.string())}
        columns |= {"warnings": pyarrow.array(self.warnings, pyarrow.list_(pyarrow.string()))}
        columns |= {"error": pyarrow.array(self.errors, pyarrow.string())}
        ordered = {"caption": pyarrow.array(self.captions, pyarrow.string())} | {name: columns[name] for name in names}
        facts = {"msdscore": self.signature, "verdict_at": limits_text(self.verdict_at)}
        return pyarrow.table(ordered).replace_schema_metadata(facts)

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas table whose `attrs` carry the signature."""
        frame = require("pandas", extra="pandas").DataFrame(self.rows())
        frame.attrs["signature"] = self.signature
        return frame

    def __str__(self) -> str:
        ranked = [self[index] for index in self.ranking]
        headings = {name: heading(name, self.signature) for name in shown(ranked)}
        widths = {name: max(9, len(text)) for name, text in headings.items()}
        heads = " ".join(f"{headings[name]:>{width}}" for name, width in widths.items())
        lines = [f"{'':>2} {heads}  caption"]
        for rank, score in enumerate(ranked, start=1):
            numbers = " ".join(f"{cell(score, name):>{width}}" for name, width in widths.items())
            lines.append(f"{rank:>2} {numbers}  {score.caption}")
        notes = [f"{s.caption[:40]!r}, {note}" for s in ranked if s.doubtful for note in s.word_notes]
        notes += [f"warning, {s.caption[:40]!r}: {warning}" for s in ranked for warning in s.warnings]
        notes += [f"not scored, {s.caption[:40]!r}: {s.error}" for s in ranked if s.error is not None]
        return "\n".join([*lines, *notes, self.signature])

    def __repr__(self) -> str:
        scored = len(self) - self.failed
        best = f", best {self.best!r}" if scored > 1 and int(self.candidates.max()) == scored else ""
        return f"Scores({len(self)} captions, {self.failed} failed{best}, {self.signature})"

    def _repr_html_(self) -> str:
        return html_table([self[index] for index in self.ranking], self.signature)
