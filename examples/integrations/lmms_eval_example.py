"""Score a document and an answer as lmms-eval does; the task is in `lmms_eval_task` next to this file."""

import runpy
from pathlib import Path

from PIL import Image

from msdscore_torch.integrations.shared import shared_scorer

TASK = Path(__file__).parent / "lmms_eval_task"


def main() -> None:
    """Score one answer."""
    process_results = runpy.run_path(str(TASK / "scoring.py"))["process_results"]
    print(process_results({"photo": Image.new("RGB", (64, 64), "red")}, ["a red and blue square"]))
    print(shared_scorer("toy").signature)


if __name__ == "__main__":
    main()
