"""Kernels of Triton in tests: on a GPU, or interpreted in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

needs_cuda = pytest.mark.skipif(
    not (torch.cuda.is_available() and find_spec("triton")), reason="needs a CUDA device and Triton"
)
needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs Triton, which torch installs only on Linux"
)


def run_interpreted(module: str) -> None:
    """Run `interpret` of a module of tests where Triton interprets kernels; it reads the switch when they are defined."""
    script = f"import warnings; warnings.simplefilter('ignore'); import {module} as tests; tests.interpret()"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def patch_numpy_scalars() -> None:
    """Convert arrays of one element to Python numbers, which Triton expects and NumPy 2.4 no longer does."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, *others):
        patch(tensor, *others)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched
