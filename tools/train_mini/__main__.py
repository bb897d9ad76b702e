"""`python tools/train_mini`: `msdscore align train` with the recipe `mini`, unless another is given."""

import sys
from pathlib import Path

from msdscore.cli.app import main

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the package `train_mini`, not its modules
    sys.argv[1:] = ["align", "train", "--recipe", "mini", *sys.argv[1:]]
    main()
