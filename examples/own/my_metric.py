"""A metric: a function of an image and a caption."""


def brevity(image, caption):
    """Prefer short captions."""
    return -len(caption.split())
