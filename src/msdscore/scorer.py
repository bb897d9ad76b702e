"""The scorer: images and captions in, scores and explanations out."""

import os.path
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from PIL.Image import Image

from msdscore.core.evidence import VERDICT_AT, ZERO
from msdscore.encoders.banks import NamedBank
from msdscore.encoders.base import Encoder
from msdscore.errors import ConfigError, ImageError, RowError, shortened
from msdscore.forms.base import Form
from msdscore.forms.registry import forms
from msdscore.io.files import is_image_name
from msdscore.io.images import ImageLimits, ImageSource
from msdscore.rows.rules import ImageAndCaption, pair_rows, stream_rows
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Score, Scores
from msdscore.scoring.rows import Errors, check_errors, finish, finish_stream, score_all, score_rows
from msdscore.scoring.spec import DEFAULT_ENCODER, ScorerSpec

if TYPE_CHECKING:  # imported by the methods that need them: a score needs none of them
    from msdscore.encoders.cached import CacheSettings
    from msdscore.explain.explanation import Explanation, Explanations
    from msdscore.rows.rules import ColumnNames
    from msdscore.run.options import RunOptions, ScoredFile

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
RECENT = 32 << 20  # bytes of vectors of recent images, and of captions, for calls with a single image
_NO_IMAGE = ImageError("no image, whose regions an explanation needs")


class Scorer:
    """Scores captions against images with one encoder and one configuration.

    `Scorer()` is the embedded default encoder `mini` with the evidence form: similarity, plus `precision` (is what is
    said true of this image?), plus `information` (how much does it tell?), minus `penalty` (for words in doubt).
    `Scorer(..., form="short")` is the paper's score for captions of a sentence, `form="long"` for
    captions of a paragraph; a form with other settings, such as `Evidence(balance=0.25)`, can be passed instead.

    Args:
        encoder: Name, hub name or folder of an encoder, `module:attribute`, or a loaded encoder.
        form: A form with its settings, or the name of a form; by default, the encoder's.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `auto`, `float32`, `float16` or `bfloat16`.
        revision: Revision of weights on the hub.
        verify: Read every byte of the weights; otherwise large files are checked by a sample.
        bank: Bank of background images, or the path of one; by default, the encoder's.
        batch_size: Number of images that are encoded together; by default, chosen for the device.
        limits: Limits on the size of images.
        threads: Number of CPU threads of this process; by default, one per core that it may use.
        verdict_at: Limits of verdicts: a match below the first is `off topic`, from the second on `on topic`.
        cache: Folder in which embeddings are stored for later runs, or its settings.
        options: Options of the encoder's family, such as `long_text="cut"`.

    Raises:
        ConfigError: If a setting is invalid, or the form needs a bank and the encoder has none.

    >>> from PIL import Image
    >>> scorer = Scorer("toy")
    >>> red = Image.new("RGB", (64, 64), "red")
    >>> scorer.rank(red, ["a blue square", "a red square"]).best
    'a red square'
    >>> repr(scorer).split("|k:")[0]
    "Scorer('toy', msd|enc:toy@1"
    """

    pipeline: Pipeline  # from images and captions to numbers

    def __init__(  # noqa: PLR0913  # settings that users pass by name
        self,
        encoder: str | Encoder = DEFAULT_ENCODER,
        form: Form | str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        revision: str | None = None,
        verify: bool = False,
        bank: NamedBank | str | Path | None = None,
        batch_size: int | None = None,
        limits: ImageLimits | None = None,
        cache: "CacheSettings | str | Path | None" = None,
        threads: int | None = None,
        verdict_at: tuple[float, float] = VERDICT_AT,
        **options: Any,
    ) -> None:
        _reject_settings(options)
        if not isinstance(encoder, str) and not hasattr(encoder, "encode_images"):
            raise ConfigError(f"expected an encoder or the name of one, got {type(encoder).__name__}")
        loaded = None if isinstance(encoder, str) else encoder
        placement = {"device": device, "dtype": dtype, "revision": revision, "verify": verify}
        given = [*options, *(name for name, value in placement.items() if value not in ("auto", None, False))]
        if loaded is not None and given:
            raise ConfigError(f"options go with an encoder's name, not with a loaded encoder: {', '.join(given)}")
        own_bank = bank if isinstance(bank, NamedBank) else None
        spec = ScorerSpec(
            encoder=encoder if isinstance(encoder, str) else encoder.name,
            device=device,
            dtype=dtype,
            revision=revision,
            verify=verify,
            form=form,
            bank=None if bank is None or own_bank is not None else str(bank),
            limits=limits or ImageLimits(),
            batch_size=batch_size,
            cache=_cache_settings(cache),
            threads=threads,
            verdict_at=verdict_at,
            options=tuple(options.items()),
        )
        self.pipeline = spec.build(encoder=loaded, bank=own_bank)
        self._spec = spec if loaded is None and own_bank is None else None

    @classmethod
    def from_spec(cls, spec: ScorerSpec) -> "Scorer":
        """Build a scorer from a spec, for example in another process."""
        scorer = cls.__new__(cls)
        scorer._spec, scorer.pipeline = spec, spec.build()
        return scorer

    def __reduce__(self) -> tuple[Callable[[ScorerSpec], "Scorer"], tuple[ScorerSpec]]:
        """Pickle the spec: weights are loaded again."""
        return Scorer.from_spec, (self.spec,)

    @property
    def spec(self) -> ScorerSpec:
        """Picklable spec from which another process builds the same scorer with `Scorer.from_spec`."""
        if self._spec is None:
            raise ConfigError(
                "this scorer was built from a loaded encoder or bank, which a spec cannot name; "
                "pass the encoder's name and the bank's path"
            )
        return self._spec

    @cached_property
    def _recent(self) -> Pipeline:
        """The same pipeline with a small cache: another caption of a recent image costs only the caption."""
        return self.pipeline.remembering(RECENT)

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        return self.pipeline.encoder

    @property
    def form(self) -> Form:
        """The form of the score, with its settings."""
        return self.pipeline.form

    @property
    def bank(self) -> NamedBank | None:
        """The bank of background images that terms are calibrated with, or None."""
        return self.pipeline.bank

    @property
    def signature(self) -> str:
        """Everything that can change a score, in one line."""
        return self.pipeline.signature

    def __repr__(self) -> str:
        return f"Scorer({self.encoder.name!r}, {self.signature}, device={self.encoder.device})"

    def score(
        self,
        image: ImageSource | None,
        caption: str,
        references: Sequence[str] | None = None,
        *,
        errors: Errors = "raise",
    ) -> Score:
        """Score one caption of an image.

        Args:
            image: Path, bytes, open file, Pillow image, array, tensor, or a dictionary with `bytes` or `path`; None to
                compare the caption with its references only.
            caption: The caption.
            references: Captions of the same image by people; one that equals the caption is left out with a warning.
            errors: `raise` for an image or caption that cannot be read, or return a `row` with the error.

        Returns:
            The score. A single caption has no candidate set, so its `soft_msd` is its `msd`. With `references` it has
            `ref_msd` and its parts too; without an image only `reference_score` and its parts.

        Raises:
            ImageError: If the image cannot be read.
            CaptionError: If the caption cannot be read.

        >>> score = Scorer("toy").score(None, "a red square", ["a red box", "a small red square"])
        >>> score.reference_count, score.warnings
        (2.0, ['no image: compared with the references only'])
        """
        return self.rank(image, [caption], references, errors=errors)[0]

    def rank(
        self,
        image: ImageSource | None,
        captions: Iterable[str],
        references: Sequence[str] | None = None,
        *,
        errors: Errors = "raise",
    ) -> Scores:
        """Score captions of one image as a candidate set.

        Args:
            image: An image as for `score`.
            captions: At least one caption.
            references: Captions of the same image by people.
            errors: `raise` the first error, or return a `row` with the error.

        Returns:
            One score per caption. `ranking` and `best` order them by Soft-MSD, or by `ref_msd` if all have it.

        Raises:
            ImageError: If the image cannot be read.
            CaptionError: If a caption cannot be read.
        """
        texts = _listed(captions)
        if not texts:
            raise ConfigError("rank needs a list of at least one caption; score takes a single one")
        _reject_swapped(image, texts)
        count = len(texts)
        rows = pair_rows([image], texts, [0] * count, sets=[0] * count, references=[references])
        return finish(score_all(self._recent, rows, errors=errors), self.form)

    def rank_images(self, images: Iterable[ImageSource], caption: str, *, errors: Errors = "row") -> Scores:
        """Score images for one caption, such as those generated from a prompt, as a candidate set.

        Args:
            images: At least one image.
            caption: The caption.
            errors: `raise` the first error, or return a `row` with the error.

        Returns:
            One score per image. `ranking` has the indices of the images from best to worst by Soft-MSD, whose
            uncertainty is that of the caption's similarities with the images; `best` is the first image. An image that
            cannot be read is a row with an error.

        >>> from PIL import Image
        >>> squares = [Image.new("RGB", (64, 64), colour) for colour in ("blue", "red")]
        >>> Scorer("toy").rank_images(squares, "a red square").ranking
        (1, 0)
        """
        sources = _listed(images)
        if not sources:
            raise ConfigError("rank_images needs a list of at least one image; score takes a single one")
        count = len(sources)
        rows = pair_rows(sources, [caption] * count, range(count), sets=[0] * count)
        scores = score_all(self.pipeline, rows, errors=errors)
        scores = replace(scores, images=np.zeros_like(scores.images))  # to compare images is no mistake here
        return replace(finish(scores, self.form), sources=tuple(sources))

    def score_batch(
        self,
        images: Iterable[ImageSource],
        captions: Iterable[str],
        *,
        owner: Iterable[int] | None = None,
        references: Iterable[Sequence[str] | None] | None = None,
        progress: Progress = lambda done, total: None,
        errors: Errors = "row",
    ) -> Scores:
        """Score many pairs of images and captions; `rank` scores captions of a single image.

        Args:
            images: One image per caption, each scored separately: a list, array or column.
            captions: The captions.
            owner: Image index of each caption; captions of one image are then a candidate set.
            references: References of each image, or None for an image without.
            progress: Called with the number of finished captions and their total.
            errors: `raise` the first error, or return a `row` of NaN with a message in `errors`.

        Returns:
            One score per caption, in their order.

        >>> from PIL import Image
        >>> squares = [Image.new("RGB", (64, 64), colour) for colour in ("blue", "red")]
        >>> len(Scorer("toy").score_batch(squares, ["a blue square", "a red square"]))
        2
        """
        sources, texts = _listed(images), _listed(captions)
        if not sources or not texts:
            raise ConfigError(
                "expected lists of at least one image and one caption; for captions of a single image use rank"
            )
        if owner is None and len(sources) != len(texts):
            raise ConfigError(
                f"expected one image per caption, got {len(sources)} and {len(texts)}; for several captions of one "
                "image use rank, or pass owner=, the image index of each caption"
            )
        numbers = list(range(len(texts))) if owner is None else _owners(owner, len(texts), len(sources))
        lists = _reference_lists(references, len(sources))
        rows = pair_rows(sources, texts, numbers, sets=numbers, references=lists)
        return finish(score_all(self.pipeline, rows, errors=errors, progress=progress), self.form)

    def score_table(
        self,
        table: Any,
        *,
        columns: "ColumnNames | None" = None,
        images: str | Path | None = None,
        prefix: str = "",
        progress: Progress = lambda done, total: None,
        errors: Errors = "row",
    ) -> Any:
        """Score the rows of a table.

        Captions of one image, or rows of one `group`, are a candidate set, and a row with a list of captions becomes
        one row per caption. A column `references` with lists of captions by people adds `ref_msd` and its parts; a
        row with references needs no image.

        Args:
            table: A pandas DataFrame, a pyarrow Table, or a table with the Arrow interface (polars, datasets). Images
                are paths, bytes, `{"bytes", "path"}` cells or, in pandas, anything that `score` accepts.
            columns: Names of the input columns, if they are not the usual ones.
            images: Folder of relative paths.
            prefix: Prefix of the names of added columns.
            progress: Called with the number of finished captions and their total.
            errors: `raise` the first error, or return a `row` with the error.

        Returns:
            The table with the columns of the scores at its end; a pyarrow Table unless it was a DataFrame.

        >>> import pyarrow as pa
        >>> pixels = b"P6 1 1 255 " + bytes([255, 0, 0])
        >>> table = pa.table({"image": [pixels], "caption": ["a red square"]})
        >>> Scorer("toy").score_table(table).column_names[:4]
        ['image', 'caption', 'similarity', 'coverage']
        """
        from msdscore.rows.rules import ColumnNames
        from msdscore.rows.tables import as_table, read_table, with_scores

        given = as_table(table)
        read = read_table(given, columns or ColumnNames(), None if images is None else Path(images))
        scores = finish(score_all(self.pipeline, read.rows, errors=errors, progress=progress), self.form)
        return with_scores(given, read, scores.to_arrow(), prefix)

    def score_file(
        self,
        rows: str | Path,
        output: str | Path,
        *,
        images: str | Path | None = None,
        columns: "ColumnNames | None" = None,
        options: "RunOptions | None" = None,
        progress: Progress = lambda done, total: None,
    ) -> "ScoredFile":
        """Score the rows of a file into another file, as `msdscore score` does; an interrupted call is resumed.

        Args:
            rows: File of rows: JSON lines, JSON, CSV, TSV, Parquet or a tar.
            output: Output file, by its suffix: Parquet, JSON lines, JSON, CSV or TSV.
            images: Folder of relative paths.
            columns: Names of the input columns, if they are not the usual ones.
            options: Options of the run, such as `RunOptions(overwrite=True)`.
            progress: Called with the number of finished rows and their total.

        Returns:
            A summary with the numbers of scored and failed rows. Errors of rows are in the column `error`.
        """
        from msdscore.rows.files import open_rows
        from msdscore.rows.rules import ColumnNames
        from msdscore.run.rows import score_file

        with open_rows(rows, images=images, columns=columns or ColumnNames()) as source:
            return score_file(self.pipeline, source, Path(output), options, progress=progress)

    def stream(self, rows: "Iterable[ImageAndCaption]", *, errors: Errors = "row") -> Iterator[Score]:
        """Score any number of rows lazily, in constant memory.

        Args:
            rows: Pairs `(image, caption)`, or mappings with the columns of a file, such as `image`, `caption`,
                `references` and `group`. A list of captions is a candidate set, and so are rows of one group or image
                that follow each other.
            errors: `raise` the first error, or yield a `row` with the error.

        Yields:
            One score per caption; a row that cannot be scored has an `error`.

        >>> from PIL import Image
        >>> row = {"image": Image.new("RGB", (64, 64), "red"), "captions": ["a red square", "a blue square"]}
        >>> [score.candidates for score in Scorer("toy").stream([row])]
        [2, 2]
        """
        with closing(score_rows(self.pipeline, stream_rows(rows), errors=errors)) as chunks:
            for scores in finish_stream(chunks, self.form):
                yield from scores

    @overload  # a text is a sequence of texts
    def explain(  # type: ignore[overload-overlap]
        self, image: ImageSource, caption: str, references: Sequence[str] | None = None, *, doubt: float = ZERO
    ) -> "Explanation": ...

    @overload
    def explain(
        self,
        image: ImageSource,
        caption: Iterable[str],
        references: Sequence[str] | None = None,
        *,
        doubt: float = ZERO,
    ) -> "Explanations": ...

    def explain(
        self,
        image: ImageSource,
        caption: str | Iterable[str],
        references: Sequence[str] | None = None,
        *,
        doubt: float = ZERO,
    ) -> "Explanation | Explanations":
        """Explain the score of a caption, or of several, by its words and the regions of the image.

        Args:
            image: An image as for `score`.
            caption: The caption, or a list of captions, which are scored as a candidate set and share a colour scale.
            references: Captions of the same image by people. Words that they contain count as supported, and `missing`
                begins with words that several of them contain and the caption does not.
            doubt: Words with a lower p-value are in doubt (`Explanation.doubtful`, orange).

        Returns:
            The score with its terms per word and per region, to show in a notebook or to `save`; for several captions
            one of each.
        """
        from msdscore.explain.explanation import explain

        together = isinstance(caption, Iterable) and not isinstance(caption, str | bytes | Mapping)
        texts: list[Any] = _listed(caption) if together else [caption]
        if not texts:
            raise ConfigError("explain needs a caption, or a list of at least one")
        _reject_swapped(image, texts)
        rows = pair_rows([image], texts, [0] * len(texts), sets=[0] * len(texts), references=[references])
        _raise_first((row.error for row in rows), "raise")
        explained = explain(self._recent, image, texts, rows[0].references, doubt=doubt)
        return explained if together else explained[0]

    def explain_batch(
        self,
        images: Sequence[ImageSource],
        captions: Sequence[str],
        *,
        references: Iterable[Sequence[str] | None] | None = None,
        doubt: float = ZERO,
        errors: Errors = "row",
    ) -> "list[Explanation | RowError]":
        """Explain many pairs.

        Args:
            images: One image per caption.
            captions: The captions.
            references: References of each image, or None for an image without.
            doubt: Words with a lower p-value are in doubt.
            errors: `raise` the first error, or return it as a `row`, in place of the explanation.

        Returns:
            One explanation per caption, or the error of an item that cannot be read.

        >>> from PIL import Image
        >>> square = Image.new("RGB", (64, 64), "red")
        >>> [why.caption for why in Scorer("toy").explain_batch([square, square], ["a red square", "a blue square"])]
        ['a red square', 'a blue square']
        """
        from msdscore.explain.explanation import explain_pairs

        sources, texts = _listed(images), _listed(captions)
        for name, given, items in (("images", images, sources), ("captions", captions, texts)):
            if not items:
                raise ConfigError(
                    f"expected a list of {name}, got {shortened(repr(given))}; explain takes a single pair"
                )
        if len(sources) != len(texts):
            raise ConfigError(f"expected one image per caption, got {len(sources)} and {len(texts)}")
        numbers = range(len(sources))
        rows = pair_rows(sources, texts, numbers, sets=numbers, references=_reference_lists(references, len(sources)))
        good = [row for row in rows if row.error is None and row.image is not None]
        sources, texts = [row.image for row in good if row.image is not None], [row.caption for row in good]
        known = [row.references for row in good]
        explained = iter(explain_pairs(self._recent, sources, texts, known, doubt=doubt))
        results = [row.error or (_NO_IMAGE if row.image is None else next(explained)) for row in rows]
        _raise_first(results, errors)
        return results


def _reject_settings(options: Mapping[str, Any]) -> None:
    """Raise for a setting of a form among the options of the encoder."""
    for name in options:
        names = [form.__name__ for form in forms() if name in {field.name for field in fields(form)}]
        if names:
            raise ConfigError(
                f"{name} is a setting of {' and '.join(names)}, not an option of an encoder; "
                f"pass a form: Scorer(encoder, {names[0]}({name}={options[name]!r}))"
            )


def _reject_swapped(image: object, captions: Sequence[object]) -> None:
    """Raise if image and caption are swapped: "no such file" would not explain the error."""
    # Unlike Path.exists, os.path.exists is false for a text that is too long for a file name.
    if not isinstance(image, str) or is_image_name(Path(image)) or os.path.exists(image):  # noqa: PTH110
        return
    texts = [caption for caption in captions if isinstance(caption, str) and is_image_name(Path(caption))]
    if texts:
        raise ConfigError(
            f"expected the image first and its caption second, got {shortened(image)!r} and {shortened(texts[0])!r}; "
            "swap them"
        )


def _cache_settings(cache: "CacheSettings | str | Path | None") -> "CacheSettings | None":
    if not isinstance(cache, str | Path):
        return cache
    from msdscore.encoders.cached import CacheSettings

    return CacheSettings(folder=str(cache))


def _raise_first(rows: Iterable[object], errors: Errors) -> None:
    check_errors(errors)
    error = next((row for row in rows if isinstance(row, RowError)), None)
    if error is not None and errors == "raise":
        raise error


def _reference_lists(references: Any, images: int) -> list[Any]:
    """Return the references of each image; an empty list if there are none at all."""
    lists = [] if references is None else _listed(references)
    if references is not None and len(lists) != images:
        raise ConfigError(f"expected one list of references per image, got {len(lists)} for {images} images")
    return lists


def _listed(items: Iterable[Item]) -> list[Item]:
    """Return the items of a list, array or column; empty for a single image or text, a mapping or a non-iterable."""
    lone = isinstance(items, str | bytes | bytearray | Path | Image | Mapping) or hasattr(items, "read")
    # An array of numbers with two or three dimensions is one image; one of paths or objects is a column.
    if getattr(items, "ndim", 1) in (2, 3) and getattr(getattr(items, "dtype", None), "kind", "f") not in "OUST":
        lone = True
    if lone or not isinstance(items, Iterable):
        return []
    values: Any = items
    return values.to_pylist() if hasattr(items, "to_pylist") else list(items)  # Arrow iterates over its own scalars


def _owners(owner: Iterable[int], captions: int, images: int) -> list[int]:
    """Return the image index of each caption; a wrong one would silently score a caption with another image."""
    indices = [index(item) for item in _listed(owner) if hasattr(item, "__index__")]
    if len(indices) != captions or not all(0 <= item < images for item in indices):
        raise ConfigError(
            f"owner must have the image index (0 to {images - 1}) of each of {captions} captions, got {owner!r}"
        )
    return indices
