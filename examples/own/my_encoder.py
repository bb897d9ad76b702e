"""An encoder of timm patches, in which a word is the weight vector of its class."""

import re

import timm
import torch
from torch.nn.utils.rnn import pad_sequence

from msdscore.encoders.base import TokenLayout
from msdscore.encoders.preprocessing import Preprocessing, patch_layout
from msdscore_torch.backbone import Backbone, Features, Identity, SharedOptions, place
from msdscore_torch.vision.device import patch_mask

CLASSES = ["cat", "cup", "rocket", "woman"]  # the classes of your network, in order


def load(device="auto", dtype="auto", weights=""):
    where = place(device, dtype)
    torch.manual_seed(0)  # random weights without a file
    network = timm.create_model("vit_tiny_patch16_224", num_classes=len(CLASSES), checkpoint_path=weights)
    network = network.eval().to(where.device, where.dtype)
    signed = f"classes@{weights or 'random'}"  # first part of the signature of every score
    return ClassEncoder(network, Identity("classes", signed, where, SharedOptions()))


class ClassEncoder(Backbone):
    def __init__(self, network, identity):
        config = timm.data.resolve_model_data_config(network)
        steps = Preprocessing(resize=config["input_size"][1:], crop=None, mean=config["mean"], std=config["std"])
        super().__init__(identity, model=network, preprocessing=steps)

    def _see(self, images):
        patches = self.model.patch_embed
        states = self.model.forward_features(self._pixels(images))[:, self.model.num_prefix_tokens :]
        layout = tuple(patch_layout(image.view, patches.grid_size, patches.patch_size) for image in images)
        return Features(states.float(), patch_mask(layout), None, layout)

    def _read(self, texts):
        words = [[match for match in re.finditer(r"\w+", text) if match[0].lower() in CLASSES] for text in texts]
        vectors = self.model.head.weight.float()
        rows = [vectors[[CLASSES.index(match[0].lower()) for match in found]] for found in words]
        mask = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
        layout = tuple(TokenLayout(tuple(match.span() for match in found)) for found in words)
        return Features(pad_sequence(rows, batch_first=True), mask, None, layout)
