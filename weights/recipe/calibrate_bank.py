"""Calibrate the bank of `mini` again, on COCO images that it was not trained on; scores do not change.

    python weights/recipe/calibrate_bank.py DATA -o weights/src/msdscore_mini

`DATA` has `train_coco2017.jsonl` with its images in Parquet files, and the captions of `train_coco2017_texts.jsonl` and
`train_flickr8k.jsonl`. Background images, words and vocabulary are those of the bank that is installed; calibrations by
length, `match` and `familiarity` are fitted. The new bank and the checksums are written to the folder.
"""

import argparse
import json
import sys
from pathlib import Path

from msdscore.encoders.banks import bank_bytes, content_digest, read_bank
from msdscore.encoders.checkpoints import LISTED, META, write_sums
from msdscore.encoders.registry import load_encoder
from msdscore.forms.evidence import Evidence
from msdscore.io.images import open_image
from msdscore_lab.bank.calibrate import calibrated_bank
from msdscore_lab.pairs import DataSource, image_content, open_pairs
from train_mini.prepare import is_held_out

NAME = "bank.safetensors"
HELD_OUT = 12  # one image in this many was not trained on: `held_out` of the recipe
_EVERY = 3  # of the captions of COCO that serve as other captions; all of Flickr8k do


def main() -> None:
    """Read the arguments, and write the bank and the checksums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the weights")
    parser.add_argument("--limit", type=int, help="number of images, for a trial")
    given = parser.parse_args()
    files = tuple(str(path) for path in sorted(given.data.glob("train_coco2017.images*.parquet")))
    pairs = open_pairs(DataSource((str(given.data / "train_coco2017.jsonl"),), files, None)).items
    held_out = [pair for pair in pairs if is_held_out(pair, HELD_OUT)][: given.limit]
    coco = first_captions(given.data / "train_coco2017_texts.jsonl")[::_EVERY]
    # Alternating, so that an even selection has both.
    flickr = first_captions(given.data / "train_flickr8k.jsonl")
    others = [text for both in zip(coco, flickr, strict=False) for text in both]
    encoder = load_encoder("mini")
    assert encoder.bank is not None, "mini has a bank"
    built = calibrated_bank(
        encoder,
        Evidence(),
        [open_image(image_content(pair.image)) for pair in held_out],
        [pair.captions for pair in held_out],
        background=encoder.bank,
        others=others,
    )
    (given.output / NAME).write_bytes(bank_bytes(built.bank, half=True))
    stored = content_digest(read_bank(given.output / NAME)[0])  # of the numbers in half precision
    meta = json.loads((given.output / META).read_text(encoding="utf-8")) | {"bank": stored}
    (given.output / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    write_sums(given.output, LISTED)
    sys.stdout.write(f"bank {built.name} from {len(held_out)} images, {built.quality}\n")


def first_captions(path: Path) -> list[str]:
    """Return the first caption of every row of a file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["captions"][0] for line in file]


if __name__ == "__main__":
    main()
