"""What lmms-eval does with a document and an answer; `lmms_eval_task` beside this file is the task itself."""

import runpy
from pathlib import Path

from PIL import Image

from msdscore.scorer import shared_scorer

TASK = Path(__file__).parent / "lmms_eval_task"


def main() -> None:
    """Score one answer as the harness would."""
    process_results = runpy.run_path(str(TASK / "scoring.py"))["process_results"]
    print(process_results({"photo": Image.new("RGB", (64, 64), "red")}, ["a red and blue square"]))
    print(shared_scorer("toy").signature)


if __name__ == "__main__":
    main()
