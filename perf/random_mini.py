"""Complete the weights of `mini` with random networks, for machines to which they cannot be sent.

    python perf/random_mini.py weights/src/msdscore_mini /tmp/weights
    PYTHONPATH=src:/tmp/weights python perf/mini_on_gpu.py

Copies the folder, and writes each network that is missing there (`minilm`, `lite2`, `trunk-0`, `trunk-1`) with random
weights of the same shapes, and new checksums. Scores mean nothing then; times are the same.
"""

import json
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file

from msdscore_torch.aligned.lite2 import Lite2
from msdscore_torch.aligned.minilm import MiniLM

TUNED = 3  # first stage of a branch that differs from the shared network


def random_state(network: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Random weights that keep the size of activations; norms and biases are those of an identity."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in network.state_dict().items():
        if tensor.ndim == 1:
            state[name] = (
                torch.ones(tensor.shape) if "norm" in name and name.endswith("weight") else torch.zeros(tensor.shape)
            )
        else:
            inputs = tensor.shape[0] if tensor.ndim == 2 else tensor[0].numel()
            state[name] = torch.randn(tensor.shape, generator=generator) * (2.0 / inputs) ** 0.5
    return {name: tensor.half() for name, tensor in state.items()}


def is_tuned(name: str) -> bool:
    """Whether a branch has its own tensor of this name."""
    part, _, rest = name.partition(".")
    return part == "head" or (part == "stages" and int(rest.partition(".")[0]) >= TUNED)


def complete(source: Path, target: Path) -> None:
    """Copy the weights, and write the missing networks."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    with torch.device("meta"):
        lite2, minilm = Lite2(), MiniLM()
    branches = [
        {name: tensor for name, tensor in random_state(lite2, seed).items() if is_tuned(name)} for seed in (1, 2)
    ]
    networks = {
        "lite2": random_state(lite2, 0),
        "minilm": random_state(minilm, 0),
        "trunk-0": branches[0],
        "trunk-1": branches[1],
    }
    for name, state in networks.items():
        if not (target / f"{name}.safetensors").exists():
            save_file(state, target / f"{name}.safetensors")
            print(f"{name}: random weights")
    config = json.loads((target / "config.json").read_text())
    config["text"]["sha256"] = config["image"]["sha256"] = ""
    (target / "config.json").write_text(json.dumps(config, indent=2))
    names = [line.split()[1] for line in (source / "SHA256SUMS").read_text().splitlines()]
    sums = [f"{sha256((target / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (target / "SHA256SUMS").write_text("".join(sums))


def add_random_mini(folder: Path) -> None:
    """Make `msdscore_mini` importable if it is not installed; with random networks in `folder` if some are missing."""
    source = Path(__file__).parents[1] / "weights" / "src" / "msdscore_mini"
    names = [line.split()[1] for line in (source / "SHA256SUMS").read_text().splitlines()]
    if all((source / name).exists() for name in names):
        sys.path.append(str(source.parent))
    else:
        complete(source, folder / "msdscore_mini")
        sys.path.insert(0, str(folder))


if __name__ == "__main__":
    complete(Path(sys.argv[1]), Path(sys.argv[2]) / "msdscore_mini")
