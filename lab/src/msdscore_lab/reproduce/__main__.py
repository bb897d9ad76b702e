"""Reproduce published results with real checkpoints: `python -m msdscore_lab.reproduce run --data FOLDER -o FOLDER`.

`run` scores SugarCrepe, Flickr8k-Expert and Pascal-50S with CLIP ViT-B/32 and L/14, LongCLIP-L, SigLIP 2 and LLaVA-1.5,
CapArena with LLaVA-1.5, RSICD with RemoteCLIP, ROCOv2 with BiomedCLIP, and Flickr8k-CF, Composite, DocENT, COCO-CF and
the paper's studies with CLIP ViT-L/14, all with the form `paper`. It compares the results on complete data with
published values, within stated tolerances, and writes reproduce.md and reproduce.json. Results without data or weights
are listed as missing, with the reason. The same command resumes an interrupted run.

`rehearse` writes checkpoints of the same classes and shapes with random weights, and all benchmarks with few items in
the released formats, to test the whole process offline.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msdscore.errors import ConfigError, MissingExtraError, MSDScoreError
from msdscore_lab.reproduce.campaign import BENCHMARKS, ENCODERS, Campaign, run_campaign, summary
from msdscore_lab.reproduce.page import DATA, PAGE, write_pages
from msdscore_lab.reproduce.studies import STUDIES, check_studies, run_studies

SOME_MISSING = 3
USAGE = 2
STOPPED = 130
_DATA = """The data folder contains one folder per benchmark, or the files of all benchmarks:
  sugarcrepe/       data/*.json of github.com/RAIVNLab/sugar-crepe and val2017/ of COCO
  flickr8k-expert/  ExpertAnnotations.txt and Flickr8k.token.txt of Flickr8k_text.zip, and Flicker8k_Dataset/
  pascal50s/        pair_pascal.mat and consensus_pascal.mat, or FLEUR's pascal_50s.json, and JPEGImages/ of VOC
  and folders flickr8k-cf, composite, caparena, docent, coco-cf, rsicd, rocov2 (`msdscore benchmarks show NAME`)
Weights come from the Hugging Face hub, or from folders (--local, --checkpoint).
Exit codes: 0 all runs finished, 3 some could not run (the page lists the reasons), 2 invalid usage, 130 interrupted."""


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m msdscore_lab.reproduce", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="run, compare and write the page", description=__doc__, epilog=_DATA, formatter_class=form
    )
    run.add_argument("--data", type=Path, required=True, help="folder of the benchmarks, see below")
    run.add_argument("--output", "-o", type=Path, default=Path("build/reproduce"), help="folder of results and page")
    run.add_argument("--encoder", "-e", action="append", help=f"only these; repeatable; of {', '.join(ENCODERS)}")
    run.add_argument("--benchmark", "-b", action="append", help=f"only these; repeatable; of {', '.join(BENCHMARKS)}")
    run.add_argument("--study", action="append", help=f"only these; repeatable; of {', '.join(STUDIES)}, or none")
    run.add_argument("--local", type=Path, help="folder of checkpoints, each in a folder named as its encoder")
    run.add_argument("--checkpoint", action="append", default=[], metavar="NAME=FOLDER", help="one encoder's folder")
    run.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    run.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16; auto is float16 on a GPU")
    run.add_argument("--batch-size", type=int, help="images per batch; default: chosen for the device")
    run.add_argument("--limit", type=int, help="maximum number of items per benchmark; results are then not judged")
    run.add_argument("--samples", type=int, default=1000, help="resamples per interval (1000)")
    rehearse = commands.add_parser(
        "rehearse", help="write checkpoints with random weights and small benchmarks", formatter_class=form,
        description="Write FOLDER/checkpoints/NAME, full-size, and FOLDER/data; then print the command of the run.",
    )  # fmt: skip
    rehearse.add_argument("folder", type=Path, help="an empty folder; all checkpoints take 20 GB")
    rehearse.add_argument("--encoder", "-e", action="append", help=f"only these; of {', '.join(ENCODERS)}")
    rehearse.add_argument("--items", type=int, default=48, help="images of each benchmark (48)")
    rehearse.add_argument("--device", default="cpu", help="device that draws the weights: cpu or cuda")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return _run(args) if args.command == "run" else _rehearse(args)
    except MSDScoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; finished parts are saved, and the same command resumes from there\n")
        return STOPPED


def _run(args: argparse.Namespace) -> int:
    if not args.data.is_dir():
        raise ConfigError(f"--data: expected a folder of benchmarks, but {args.data} does not exist")
    campaign = Campaign(
        data=args.data, output=args.output, encoders=tuple(args.encoder or ENCODERS),
        benchmarks=tuple(args.benchmark or BENCHMARKS), checkpoints=_checkpoints(args), device=args.device,
        dtype=args.dtype, batch_size=args.batch_size, limit=args.limit, samples=args.samples,
    )  # fmt: skip
    check_studies(args.study or ())
    cells = run_campaign(
        campaign,
        finished=lambda cells: write_pages(cells, args.output),
        progress=_show,
        say=_say,
    )
    cells += run_studies(campaign, tuple(args.study or STUDIES), say=_say)
    write_pages(cells, args.output)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary(cells).items())
    sys.stdout.write(f"{args.output / PAGE} and {DATA}: {counts}\n")
    return SOME_MISSING if summary(cells)["missing"] else 0


def _checkpoints(args: argparse.Namespace) -> dict[str, Path]:
    local = [args.local / name for name in ENCODERS] if args.local else []
    if local and not any(map(Path.is_dir, local)):
        raise ConfigError(f"--local: expected folders named {', '.join(ENCODERS)} in {args.local}, found none")
    folders = {path.name: path for path in local if path.is_dir()}
    for text in args.checkpoint:
        name, equals, folder = text.partition("=")
        if not equals:
            raise ConfigError(f"--checkpoint: expected NAME=FOLDER, got {text!r}")
        folders[name] = Path(folder)
    return folders


def _show(name: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r{name}: {done} of {total}" + ("\n" if done == total else ""))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _rehearse(args: argparse.Namespace) -> int:
    from msdscore_lab.paper.rehearsal import write_checkpoint
    from msdscore_lab.paper.rehearsal_data import write_benchmarks

    names = tuple(args.encoder or ENCODERS)
    Campaign(data=args.folder, output=args.folder, encoders=names)  # raises for unknown names
    write_benchmarks(args.folder / "data", images=args.items)
    for name in names:
        sys.stderr.write(f"{name}\n")
        try:
            write_checkpoint(args.folder / "checkpoints" / name, name, device=args.device)
        except MissingExtraError as error:  # its runs are then listed as not run, with the same reason
            sys.stderr.write(f"{name}: {error}\n")
    chosen = "".join(f" -e {name}" for name in args.encoder or ())
    sys.stdout.write(
        f"python -m msdscore_lab.reproduce run --data {args.folder}/data --local {args.folder}/checkpoints "
        f"-o {args.folder}/out{chosen}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
