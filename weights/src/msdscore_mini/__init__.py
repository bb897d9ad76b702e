"""Weights of `mini`, the default encoder of msdscore; msdscore reads the files of this folder."""
