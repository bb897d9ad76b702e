"""Functions of the task: images of the column photo, scored with any encoder."""

from msdscore_lab.harnesses.lmms_eval.captions import caption_scores

process_results = caption_scores("toy", image="photo")  # "mini" for photographs; toy only knows colours


def photo(doc):
    """Return the image for the model."""
    return [doc["photo"].convert("RGB")]
