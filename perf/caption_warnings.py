"""How often captions are warned about: other languages, English ones by mistake, and the time it takes.

    python perf/caption_warnings.py FOLDER

FOLDER holds files of rows (`train_*.jsonl`) with English captions under `captions` or `caption`. The captions in other
languages are in `foreign_captions.json` beside this file; the limits in the code were chosen on its first half alone.
"""

import json
import sys
import time
from itertools import chain
from pathlib import Path
from random import Random

from msdscore.text.warnings import text_warnings

ENGLISH = 40_000


def english_captions(folder: Path) -> list[str]:
    """So many captions of all files, drawn by a fixed seed."""
    captions: list[str] = []
    for path in sorted(folder.glob("train_*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            captions += row.get("captions") or ([row["caption"]] if "caption" in row else [])
    return Random(1).sample(captions, min(ENGLISH, len(captions)))


def main() -> None:
    """Print both rates and the time per caption."""
    halves = json.loads((Path(__file__).parent / "foreign_captions.json").read_text(encoding="utf-8"))
    for name, languages in halves.items():
        captions = list(chain.from_iterable(languages.values()))
        missed = [caption for caption in captions if "not English" not in text_warnings(caption, english=True)]
        caught = len(captions) - len(missed)
        print(
            f"{name}: {caught} of {len(captions)} captions in {len(languages)} languages are noticed; missed: {missed}"
        )
    english = english_captions(Path(sys.argv[1]))
    begin = time.process_time()
    warnings = [text_warnings(caption, english=True) for caption in english]
    each = (time.process_time() - begin) / len(english) * 1e6
    alarms = [(caption, found) for caption, found in zip(english, warnings, strict=True) if found]
    print(f"English: {len(alarms)} of {len(english)} captions are warned about, {each:.0f} µs of one core per caption")
    for caption, found in alarms:
        print(f"  {', '.join(found)}: {caption.strip()}")


if __name__ == "__main__":
    main()
