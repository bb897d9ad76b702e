"""A minimal encoder: images are a grid of grey levels, words are the grey level that they name."""

import re

import torch

from msdscore.encoders.base import TokenLayout
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore.encoders.registry import EncoderRow
from msdscore_torch.backbone import Backbone, Features, Identity, SharedOptions, place, read_options
from msdscore_torch.vision.device import patch_mask

ROW = EncoderRow(name="greyscale", loader=f"{__name__}:load", family="greyscale", licence="MIT", trained_on="nothing")
SIDE, GREYS = 4, {"black": 0.0, "dark": 0.25, "grey": 0.5, "light": 0.75, "white": 1.0}


def load(source, *, name, revision=None, device="auto", dtype="auto", **options):
    """Return the encoder for `load_encoder("greyscale")`; a real encoder loads its weights here."""
    return Greyscale(Identity(name, f"{name}@1", place(device, dtype), read_options(SharedOptions, options)))


class Greyscale(Backbone):
    """`prepare` runs in the decoding processes; `Backbone` provides the name, normalisation and checks."""

    def prepare(self, image):
        return prepare_image(image, Preprocessing(resize=(SIDE, SIDE), crop=None))

    def _see(self, images):
        layout = tuple(patch_layout(image.view, (SIDE, SIDE), (1, 1)) for image in images)
        greys = torch.stack([torch.from_numpy(image.pixels) for image in images]).float().mean(dim=1) / 255
        return Features(direction(greys.flatten(1)), patch_mask(layout), None, layout)

    def _read(self, texts):
        found = [[match for match in re.finditer(r"\w+", text) if match[0].lower() in GREYS] for text in texts]
        rows = [direction(torch.tensor([GREYS[match[0].lower()] for match in words])) for words in found]
        points = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.arange(points.shape[1]) < torch.tensor([[len(row)] for row in rows])
        return Features(points, mask, None, tuple(TokenLayout(tuple(m.span() for m in words)) for words in found))


def direction(grey):
    """Return grey levels as unit vectors; black and white are orthogonal."""
    return torch.stack([torch.cos(grey * torch.pi / 2), torch.sin(grey * torch.pi / 2)], dim=-1)
