"""Reproduction of published results with real checkpoints; see `python tools/reproduce --help`."""
