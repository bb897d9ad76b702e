"""Questions of several callers answered in one call of the encoder, with the vectors of earlier ones remembered."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from msdscore.encoders.cached import CachedEncoder
from msdscore.errors import ImageError, RowError
from msdscore.explain.explanation import Explanations, explain
from msdscore.scoring.embedded import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores


@dataclass(frozen=True, slots=True)
class Question:
    """One picture and its captions; `apart` scores every caption alone, else they are a candidate set."""

    picture: Decoded
    captions: tuple[str, ...]
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanations of the captions that can be read, in order, and by number why the others cannot."""

    found: Explanations | None
    reasons: dict[int, str]


class Judge:
    """A pipeline as the service uses it; `memory` is how many bytes of vectors it remembers."""

    def __init__(self, pipeline: Pipeline, *, memory: int = 0) -> None:
        self._pipeline = copy(pipeline)
        if memory:
            self._pipeline.encoder = CachedEncoder(pipeline.encoder, memory=memory)

    @property
    def signature(self) -> str:
        """What every answer carries."""
        return self._pipeline.signature

    def decode(self, data: bytes, *, keep: bool = False) -> Decoded:
        """A picture ready for the encoder; raises `ImageError` for one that cannot be read."""
        found = self._pipeline.decode([data], keep=keep)[0]
        if isinstance(found, RowError):
            # The source has no name here: `Pipeline` calls it by its kind.
            raise ImageError(str(found)) from found
        return found

    def score(self, questions: Sequence[Question]) -> list[Scores]:
        """The scores of every question; a caption that cannot be read has its reason in `errors`."""
        captions = [caption for question in questions for caption in question.captions]
        owner = [number for number, question in enumerate(questions) for _ in question.captions]
        rows = self._pipeline.score([question.picture for question in questions], captions, owner)
        found, start = [], 0
        for question in questions:
            size = len(question.captions)
            group = list(range(size)) if question.apart else [0] * size
            some = rows[start : start + size]
            found.append(Scores.of(question.captions, some, group, self._pipeline.config, self.signature))
            start += size
        return found

    def explain(self, question: Question) -> Explained:
        """Every term of one question's captions; raises where the encoder refuses the picture."""
        assert question.picture.picture is not None, "an explanation shows the picture, so it was kept"
        refused = self._pipeline.embed_texts(question.captions).reasons
        good = [caption for number, caption in enumerate(question.captions) if number not in refused]
        found = explain(self._pipeline, question.picture.picture, good) if good else None
        return Explained(found, {number: str(reason) for number, reason in refused.items()})
