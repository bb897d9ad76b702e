"""What the task calls: pictures of the column photo, scored with an encoder of your choice."""

from msdscore.integrations.lmms_eval.captions import caption_scores

process_results = caption_scores("toy", image="photo")  # "mini" for photographs; toy knows colours alone


def photo(doc):
    """The picture for the model."""
    return [doc["photo"].convert("RGB")]
