"""An encoder in one page: pictures become a grid of greys, words become the grey that they name."""

import re

import numpy as np
import torch

from msdscore.encoders.backbone import Backbone, Identity, SharedOptions, States
from msdscore.encoders.base import TokenLayout
from msdscore.encoders.frames import Frame, mask_of, patch_layout, view
from msdscore.encoders.placement import place, read_options
from msdscore.encoders.table import EncoderRow

ROW = EncoderRow(name="greyscale", loader=f"{__name__}:load", family="greyscale", licence="MIT", trained_on="nothing")
SIDE, GREYS = 4, {"black": 0.0, "dark": 0.25, "grey": 0.5, "light": 0.75, "white": 1.0}


def load(source, *, name, revision=None, device="auto", dtype="auto", **options):
    """Called by `load_encoder("greyscale")`; a real one loads weights here."""
    chosen = read_options(SharedOptions, {"pool": "mean", **options})
    return Greyscale(Identity(name, f"{name}@1", place(device, dtype), chosen))


class Greyscale(Backbone):
    """`_see` and `_read` give local vectors of any length; names, unit lengths and checks come with Backbone."""

    def _see(self, images):
        views = [view(Frame(resize=(SIDE, SIDE), crop=None), image.size) for image in images]
        layout = tuple(patch_layout(where, (SIDE, SIDE), (1, 1)) for where in views)
        greys = [np.asarray(image.convert("L").resize((SIDE, SIDE)), dtype=np.float32) / 255 for image in images]
        return States(direction(torch.tensor(np.stack(greys)).flatten(1)), mask_of(layout), None, layout)

    def _read(self, texts):
        found = [[match for match in re.finditer(r"\w+", text) if match[0].lower() in GREYS] for text in texts]
        rows = [direction(torch.tensor([GREYS[match[0].lower()] for match in words])) for words in found]
        points = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.arange(points.shape[1]) < torch.tensor([[len(row)] for row in rows])
        return States(points, mask, None, tuple(TokenLayout(tuple(m.span() for m in words)) for words in found))


def direction(grey):
    """Grey as an angle: black and white are at right angles."""
    return torch.stack([torch.cos(grey * torch.pi / 2), torch.sin(grey * torch.pi / 2)], dim=-1)
