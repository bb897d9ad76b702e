"""`msdscore doctor`: information about the installation and a self-test, for bug reports."""

import re
from importlib.metadata import PackageNotFoundError, metadata, version
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from msdscore import threads
from msdscore.cli import options
from msdscore.cli.progress import print_json
from msdscore.errors import MSDScoreError
from msdscore.installation import install_line
from msdscore.version import __version__

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

FAILED = 1
_REQUIRED = 2  # of three colours; random guessing recognises one on average
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,.-]+)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")
# Libraries of the encoders on a CPU without torch, and their packages; an encoder of a plugin is its own library.
_LIBRARIES = {
    "msdscore.encoders.mini": ("ONNX Runtime", "onnxruntime"),
    "msdscore.encoders.toy": ("NumPy", "numpy"),
}
_IGNORED = ("all", "test", "docs", "check")  # for development, or all of them


def doctor(chosen: options.ScorerOptions, json: options.Json = False) -> None:
    """Show version, device, extras and weights, and run a short self-test.

    Exit codes: 0 the self-test passed, 1 it failed.
    """
    import platform

    from msdscore.scorer import Scorer

    system = f"Python {platform.python_version()}, {platform.platform()}"
    lines = {"version": f"msdscore {__version__}, {system}"}
    lines |= {"extras": _extras(), "encoder": chosen.encoder}
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


def _extras() -> str:
    """Return the complete extras, followed by the incomplete ones with their missing packages."""
    try:
        described = metadata("msdscore")
    except PackageNotFoundError:
        return "unknown: msdscore runs from its source and is not installed"
    complete, missing = [], []
    for extra in described.get_all("Provides-Extra") or []:
        if extra in _IGNORED:
            continue
        if absent := _absent(extra, described.get_all("Requires-Dist") or []):
            missing.append(f"{extra} ({', '.join(absent)})")
        else:
            complete.append(extra)
    return (", ".join(complete) or "none") + (f"; missing: {', '.join(missing)}" if missing else "")


def _absent(extra: str, requirements: list[str]) -> list[str]:
    """Return the packages of an extra, and of extras it includes, that are not installed."""
    absent: dict[str, None] = {}
    for requirement in requirements:
        marker, match = _EXTRA.search(requirement), _REQUIREMENT.match(requirement)
        if marker is None or marker[1] != extra or match is None:
            continue
        if match[1] == "msdscore":
            included = [_absent(other, requirements) for other in (match[2] or "").split(",")]
            absent |= dict.fromkeys(name for names in included for name in names)
            continue
        if not _installed(match[1]):
            absent[match[1]] = None
    return list(absent)


def _weights(encoder: str, revision: str | None, *, verify: bool) -> str:
    from msdscore.encoders.registry import encoder_folder

    folder = encoder_folder(encoder, revision=revision)
    if folder is None:
        return "no files, or managed by the encoder's loader"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    checked = "every byte hashed" if verify else "sizes and checksums; use --verify to hash every byte"
    return f"{folder}, {size / 1e6:.0f} MB, verified ({checked})"


def _runtime(scorer: "Scorer") -> str:
    """The library that computes, its device and threads, and what to install for others."""
    device, on = scorer.encoder.device, f"{threads.count()} threads on the CPU"
    if isinstance(device, str):
        module = type(scorer.encoder).__module__
        library, package = _LIBRARIES.get(module, (module.partition(".")[0],) * 2)
        more = (
            "torch is installed"
            if _installed("torch")
            else f"for a GPU or larger encoders: {install_line('msdscore[hf]')}"
        )
        return f"{library} {_installed(package)}".rstrip() + f", {on}; {more}"
    if device.type == "cuda":
        from msdscore.core.arrays import torch_part

        on = torch_part("gpu.device").described(device)
    return f"torch {_installed('torch')}, {on}"


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
