"""Published figures reproduced with real checkpoints; run it with `python tools/reproduce --help`."""
