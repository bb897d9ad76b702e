"""Recipes of `mini`: the aligner's recipe with more loss terms, labels, image distortions and tuned stages."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msdscore.errors import ConfigError
from msdscore_lab.align.recipe import LossSpec, Recipe, SampleSpec, TrainSpec, load_recipe, require_between
from msdscore_torch.aligned.lite2 import STAGES

MINI = Path(__file__).with_name("mini.toml")


# `super()` without arguments does not work in dataclasses with slots.
@dataclass(frozen=True, slots=True, kw_only=True)
class MiniLoss(LossSpec):
    """Loss terms of the aligner and of `mini`, some of which need word labels or captions by a machine."""

    TERMS: ClassVar[tuple[str, ...]] = (
        *LossSpec.TERMS, "local", "word", "kl", "relevance", "local_relevance", "grounded", "bias", "support",
        "evidence", "objects", "omission", "over_machine",
    )  # fmt: skip

    local: float = 0.0  # InfoNCE on the best patch of each token, averaged over tokens
    word: float = 0.0  # each content word against images without it, each image against absent words
    kl: float = 0.0  # InfoNCE on negative support and coverage, differentiated through EM
    kl_components: tuple[int, ...] = (3, 2)  # image, text
    kl_iterations: int = 3
    kl_kappa: float = 20.0
    kl_stride: int = 1  # coverage uses every n-th patch
    relevance: float = 0.0  # pooled similarities against the graded relevance of frozen sentence vectors
    local_relevance: float = 0.0  # the same for local similarities, each caption centred over the images
    grounded: float = 0.0  # hard negatives, by the margin that the image adds to that of the text
    bias: float = 0.0  # the margin over hard negatives that the text has without its image
    support: float = 0.0  # InfoNCE on calibrated support: log density minus its mean over the images
    evidence: float = 0.0  # log-odds of present against absent words, by calibrated evidence
    objects: float = 0.0  # log-odds of the names of annotated classes, present against absent in every image
    omission: float = 0.0  # a second true caption covers more, a false one does not
    over_machine: float = 0.0  # captions by people fit the image better than a machine's
    shrink: float = 1e-3  # shrinks the zero of each word towards that of all words

    def __post_init__(self) -> None:
        LossSpec.__post_init__(self)
        require_between(self, "kl_iterations kl_kappa kl_stride", 1, bound="be at least 1")
        if len(self.kl_components) != 2 or min(self.kl_components) < 1:
            raise ConfigError(f"kl_components must be two counts of at least 1, got {self.kl_components}")
        if not self.contrastive:
            raise ConfigError("other terms share the scale of contrastive; set loss.contrastive too")
        if self.objects and not self.evidence:
            raise ConfigError("objects shares the line of evidence; set loss.evidence too")
        if self.reconstruction:
            raise ConfigError("the trainer of mini has no reconstruction; use `msdscore align train`")


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniSample(SampleSpec):
    """Sampling of similar images, texts by rule and distorted images; a step shows two captions per image."""

    captions: int = 2
    crop: float = 0.5  # minimum share of the image area in a view
    flip: bool = False  # mirror views, unless a caption mentions left or right
    contrast: float = 0.0  # maximum relative change of contrast in a view
    brightness: float = 0.0  # maximum relative change of brightness in a view
    group: int = 1  # similar images per group in a batch, whose words are hard absent ones
    whole: float = 0.15  # share of views that show the image as it is
    resaved: float = 0.0  # share of images that look like a JPEG of them
    shrunk: float = 0.0  # share of images that are shrunk and enlarged again
    noisy: float = 0.0  # share of images with a little noise
    stored: int = 0  # side in pixels of the images stored on the device; 0: as the tower reads them
    made: int = 2  # short and long texts by rule per image, hard negatives per caption
    joined: float = 0.25  # share of second captions that are several captions joined
    alike: float = 0.6  # words whose embeddings are more alike are neither present nor absent
    classes: str = ""  # file of object classes, one per line: a name and its synonyms
    held_out: int = 0  # one image in this many, by the hash of its name, is reserved for calibration; 0: none

    def __post_init__(self) -> None:
        SampleSpec.__post_init__(self)
        if self.captions != 2:
            raise ConfigError(f"the trainer of mini shows two captions per image, got {self.captions}")
        require_between(self, "group made", 1, bound="be at least 1")
        require_between(self, "stored held_out", 0, bound="not be negative")
        require_between(self, "contrast brightness", 0, 1, bound="be at least 0 and under 1")
        for name in ("crop", "whole", "joined", "resaved", "shrunk", "noisy"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniTrain(TrainSpec):
    """Training of the heads and of the last stages of the image network."""

    tune: int = 0  # last stages of the image network that are trained too; 0: none
    tune_lr: float = 1e-4  # their learning rate

    def __post_init__(self) -> None:
        TrainSpec.__post_init__(self)
        require_between(self, "tune_lr", 0, bound="not be negative")
        require_between(self, "tune", 0, len(STAGES) + 1, bound=f"be between 0 and {len(STAGES)} stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniRecipe(Recipe):
    """A recipe that this trainer can run."""

    loss: MiniLoss = field(default_factory=MiniLoss)
    sample: MiniSample = field(default_factory=MiniSample)
    train: MiniTrain = field(default_factory=MiniTrain)

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if (self.image.kind, self.text.kind) != ("mini", "mini"):
            raise ConfigError("the trainer of mini needs towers of kind 'mini'; use `msdscore align train` for others")
        if self.train.batch % self.sample.group:
            raise ConfigError(f"train.batch {self.train.batch} must be a multiple of sample.group {self.sample.group}")


def load_mini(name: str | Path = MINI, *, changes: Iterable[str] = ()) -> MiniRecipe:
    """Load a recipe of `mini`, by default the shipped one, with changes such as `train.steps=100`."""
    return load_recipe(MiniRecipe, name, changes=changes)
