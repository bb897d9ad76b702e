"""Resident training of `mini`, the shipped encoder; run it with `python tools/train_mini --help`."""
