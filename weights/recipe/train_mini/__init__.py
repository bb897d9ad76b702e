"""Resident training of `mini`, the shipped encoder: `python weights/recipe/train.py --help`."""
