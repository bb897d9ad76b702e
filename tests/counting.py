"""The toy encoder, counting the images and captions that it reads."""

from contextlib import closing

from msdscore import ScorerSpec, load_encoder
from msdscore.errors import CaptionError
from msdscore.scoring.rows import stream_batches


def results_of(pipeline, batches):
    """Yield numbers or an error for every caption of each batch."""
    with closing(stream_batches(pipeline, batches)) as stream:
        for _, results in stream:
            yield results


class CountingEncoder:
    """The toy encoder; `images` has the size of each batch, `captions` the captions.

    It is interrupted at the first batch after `stop_after` images, and rejects the caption "refused". Encoders of tests
    that change vectors, wait or fail are subclasses.
    """

    __module__ = "msdscore.encoders.toy"  # same vectors, same signature: an encoder of a user has its own

    def __init__(self, *, stop_after=None):
        self.toy = load_encoder("toy")
        self.stop_after = stop_after
        self.images: list[int] = []
        self.captions: list[str] = []

    def __getattr__(self, name):
        return getattr(self.toy, name)

    def encode_images(self, images):
        if self.stop_after is not None and sum(self.images) >= self.stop_after:
            raise KeyboardInterrupt
        self.images.append(len(images))
        return self.toy.encode_images(images)

    def encode_texts(self, texts):
        self.captions += texts
        if "refused" in texts:
            raise CaptionError("rejected by the encoder")
        return self.toy.encode_texts(texts)


class Counted(ScorerSpec):
    """A spec that counts how often a scorer is built."""

    builds = 0

    def build(self):
        Counted.builds += 1
        return super().build()
