"""`python -m msdscore_lab.harnesses.lmms_eval` prints the folder of tasks, for lmms-eval's `--include_path`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.stdout.write(f"{Path(__file__).parent / 'tasks'}\n")
