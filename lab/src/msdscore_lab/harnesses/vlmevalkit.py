"""Unpack the images of VLMEvalKit datasets, which its prediction files do not contain.

python -m msdscore_lab.harnesses.vlmevalkit COCO_VAL.tsv -o images/
msdscore score MODEL_COCO_VAL.tsv --images images/ -o scores.parquet
"""

import argparse
import csv
import sys
from base64 import b64decode
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msdscore.errors import InputError, MSDScoreError
from msdscore.io.files import write_bytes

_LONGEST = 1 << 30  # characters of one cell: an image in base64
_SHARED = 64  # a cell up to this length is the index of the row whose image it shares


def unpack(table: Path, folder: Path) -> int:
    """Write the images of a dataset as `INDEX.jpg`; return how many were written.

    A file that exists with the same content is left alone; one with other content raises `InputError`, since the
    folder then belongs to another dataset.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    with ExitStack() as stack:
        file = stack.enter_context(table.open(encoding="utf-8-sig", newline=""))
        # The limit of the csv module is global: it is restored.
        stack.callback(csv.field_size_limit, csv.field_size_limit(_LONGEST))
        reader = csv.DictReader(file, delimiter="\t")
        if not {"index", "image"} <= set(reader.fieldnames or ()):
            names = ", ".join(reader.fieldnames or ()) or "none"
            raise InputError(f"{table}: expected the columns index and image of a VLMEvalKit dataset, found: {names}")
        for row in reader:
            target = folder / f"{_name(row['index'], table)}.jpg"
            content = _image_bytes(row["image"], folder, table)
            if not target.exists():
                write_bytes(target, content, folder=folder)
                written += 1
            elif target.read_bytes() != content:
                raise InputError(f"{target}: is another image than row {row['index']} of {table}; choose a new folder")
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Unpack the images of a VLMEvalKit dataset."""
    parser = argparse.ArgumentParser(prog="python -m msdscore_lab.harnesses.vlmevalkit", description=main.__doc__)
    parser.add_argument("table", type=Path, help="the dataset's TSV, as in ~/LMUData/COCO_VAL.tsv")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the images")
    arguments = parser.parse_args(argv)
    try:
        sys.stdout.write(f"{unpack(arguments.table, arguments.output)} images -> {arguments.output}\n")
    except (MSDScoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _name(index: str, table: Path) -> str:
    if not index or Path(index).name != index:
        raise InputError(f"{table}: the index {index!r} is not a valid file name")
    return index


def _image_bytes(cell: str, folder: Path, table: Path) -> bytes:
    """Return the bytes of a cell; a short one is the index of the row whose image it shares, as in VLMEvalKit."""
    if len(cell) <= _SHARED:
        shared = folder / f"{_name(cell, table)}.jpg"
        if not shared.exists():
            raise InputError(f"{table}: a row shares the image of row {cell}, which does not come before it")
        return shared.read_bytes()
    try:
        return b64decode(cell, validate=True)
    except ValueError as error:
        raise InputError(f"{table}: an image is not valid base64 ({error})") from error


if __name__ == "__main__":
    raise SystemExit(main())
