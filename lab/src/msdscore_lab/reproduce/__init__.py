"""Reproduction of published results with real checkpoints; see `python -m msdscore_lab.reproduce --help`."""
