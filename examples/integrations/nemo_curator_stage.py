"""A NeMo Curator stage that filters images by how well their caption matches.

    pipeline.add_stage(CaptionFilterStage(least=0.5))            # after a reader, before the writer

Captions are read from `metadata["caption"]` of every image, and the scores are added to the metadata. Tested with
nemo-curator 1.4.0: `python examples/integrations/nemo_curator_stage.py` runs it on two images without a cluster.
"""

from dataclasses import dataclass, field, replace

from nemo_curator.stages.base import ProcessingStage
from nemo_curator.stages.resources import Resources
from nemo_curator.tasks import ImageBatch, ImageObject

from msdscore import Scorer, ScorerSpec


@dataclass
class CaptionFilterStage(ProcessingStage[ImageBatch, ImageBatch]):
    """Keep images whose score `by` is at least `least`; if None, only add the scores to the metadata."""

    spec: ScorerSpec = field(default_factory=ScorerSpec)  # picklable; every worker builds its scorer from it
    by: str = "match"
    least: float | None = 0.5
    caption_key: str = "caption"
    gpus_per_worker: float = 0.0
    name: str = "msdscore_caption_filter"

    def __post_init__(self) -> None:
        self.resources = Resources(gpus=self.gpus_per_worker) if self.gpus_per_worker else Resources(cpus=1.0)

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], []

    def setup(self, worker_metadata: object = None) -> None:
        self.scorer = Scorer.from_spec(self.spec)

    def process(self, task: ImageBatch) -> ImageBatch:
        images = [_source(image) for image in task.data]
        captions = [str(image.metadata.get(self.caption_key) or "") for image in task.data]
        scores = self.scorer.score_batch(images, captions) if captions else ()
        for image, score in zip(task.data, scores, strict=True):
            image.metadata["msdscore"] = score.row() | {"signature": score.signature}
        kept = [image for image in task.data if self._is_kept(image)]
        return replace(task, data=kept)

    def _is_kept(self, image: ImageObject) -> bool:
        value = image.metadata["msdscore"][self.by]
        return self.least is None or (value is not None and value >= self.least)


def _source(image: ImageObject) -> object:
    """Return the pixels if a reader has decoded them, else the file."""
    if image.image_data is not None:
        return image.image_data
    return image.image_bytes if getattr(image, "image_bytes", None) is not None else image.image_path


if __name__ == "__main__":
    import numpy as np

    red, blue = (np.full((64, 64, 3), colour, dtype=np.uint8) for colour in ((220, 30, 30), (40, 80, 210)))
    images = [
        ImageObject(image_id=str(n), image_data=one, metadata={"caption": "a red square"})
        for n, one in enumerate((red, blue))
    ]
    stage = CaptionFilterStage(spec=ScorerSpec(encoder="toy"), by="similarity", least=0.2)
    stage.setup()
    for image in stage.process(ImageBatch(dataset_name="demo", data=images)).data:
        print(image.image_id, f"{image.metadata['msdscore']['similarity']:.3f}")
