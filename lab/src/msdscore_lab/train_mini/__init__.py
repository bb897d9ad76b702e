"""Resident training of `mini`, the shipped encoder; run it with `python -m msdscore_lab.train_mini --help`."""
