"""`msdscore doctor`: the installation and a self-test, for bug reports; `msdscore encoders`: the known encoders."""

import re
from importlib.metadata import PackageNotFoundError, requires, version
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from msdscore import threads
from msdscore.cli import options
from msdscore.cli.progress import OneName, entry_fields, print_entries, print_json
from msdscore.errors import MSDScoreError, install_line
from msdscore.version import __version__

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

FAILED = 1
_REQUIRED = 2  # of three colours; random guessing recognises one on average
_DISTRIBUTIONS = ("msdscore", "msdscore-mini", "msdscore-torch", "msdscore-serve", "msdscore-lab")
_DEVELOPMENT = re.compile(r"extra\s*==\s*['\"](test|docs|check)['\"]")  # of requirements that users do not need


def doctor(chosen: options.ScorerOptions, json: options.Json = False) -> None:
    """Show versions, device and weights, and run a short self-test.

    Exit codes: 0 the self-test passed, 1 it failed.
    """
    import platform

    from msdscore.scorer import Scorer

    system = f"Python {platform.python_version()}, {platform.platform()}"
    lines = {"version": f"msdscore {__version__}, {system}"}
    lines |= {"libraries": _libraries(), "encoder": chosen.encoder}
    passed = False
    try:
        start = perf_counter()
        scorer = Scorer.from_spec(chosen.spec())
        lines |= {
            "weights": _weights(chosen.encoder, chosen.revision, verify=chosen.verify),
            "runtime": _runtime(scorer),
        }
        lines["signature"] = scorer.signature
        passed, result = _self_test(scorer)
        lines["self-test"] = f"{result}, {perf_counter() - start:.1f} s with loading"
    except (MSDScoreError, OSError, RuntimeError) as error:  # also errors of the device or of a library
        lines["self-test"] = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    if json:
        print_json({**lines, "passed": passed})
    else:
        typer.echo("\n".join(f"{name:<10} {text}" for name, text in lines.items()))
    raise typer.Exit(0 if passed else FAILED)


def encoders(name: OneName = None, json: options.Json = False) -> None:
    """List the encoders, or show all fields of one."""
    from msdscore.encoders.registry import find_row, list_encoders

    rows = entry_fields([find_row(name)] if name else list_encoders())
    rows = [row | {"options": dict(row["options"])} for row in rows]
    printed = [row | {"parameters": f"{row['parameters']} M" if row["parameters"] else ""} for row in rows]
    print_entries(
        name, rows, printed, ("name", "family", "parameters", "context", "licence", "trained_on"), as_json=json
    )


def _libraries() -> str:
    """Return the versions of the libraries that msdscore and its extras use, then those that are not installed."""
    required = [text for name in _DISTRIBUTIONS if _installed(name) for text in requires(name) or []]
    if not required:
        return "unknown: msdscore runs from its source and is not installed"
    names = dict.fromkeys(re.split(r"[^\w.-]", text)[0] for text in required if not _DEVELOPMENT.search(text))
    found = {name: _installed(name) for name in names if name not in _DISTRIBUTIONS}
    missing = [name for name, number in found.items() if not number]
    installed = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    return installed + (f"; not installed: {', '.join(missing)}" if missing else "")


def _weights(encoder: str, revision: str | None, *, verify: bool) -> str:
    from msdscore.encoders.registry import encoder_folder

    folder = encoder_folder(encoder, revision=revision)
    if folder is None:
        return "no files, or managed by the encoder's loader"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    checked = "every byte hashed" if verify else "sizes and checksums; use --verify to hash every byte"
    return f"{folder}, {size / 1e6:.0f} MB, verified ({checked})"


def _runtime(scorer: "Scorer") -> str:
    """The module of the encoder, its device and threads, and what to install for others."""
    device, on = scorer.encoder.device, f"{threads.count()} threads on the CPU"
    if not isinstance(device, str) and device.type == "cuda":
        from msdscore.core.arrays import torch_part

        on = torch_part("gpu.device").described(device)
    more = "" if _installed("torch") else f"; for a GPU or larger encoders: {install_line('msdscore[hf]')}"
    return f"{type(scorer.encoder).__module__}, {on}{more}"


def _installed(package: str) -> str:
    """The version of an installed package, or an empty string."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _self_test(scorer: "Scorer") -> tuple[bool, str]:
    """Return whether coloured squares are matched to their captions with finite, repeatable scores."""
    import numpy as np
    from PIL import Image

    colours = ("red", "green", "blue")
    captions = [f"a {colour} square" for colour in colours]
    recognised, repeatable = 0, True
    for colour, caption in zip(colours, captions, strict=True):
        image = Image.new("RGB", (96, 96), "white")
        image.paste(colour, (16, 16, 80, 80))
        first, second = scorer.rank(image, captions), scorer.rank(image, captions)
        recognised += first.best == caption
        # A GPU may choose different kernels for the same input.
        repeatable &= bool(np.isfinite(first.msd).all() and np.allclose(first.msd, second.msd, rtol=0, atol=1e-4))
    passed = repeatable and recognised >= _REQUIRED
    numbers = "scores are repeatable" if repeatable else "scores are not finite or not repeatable"
    return passed, f"{'passed' if passed else 'failed'}: {recognised} of {len(colours)} colours recognised, {numbers}"
