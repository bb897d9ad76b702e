"""Tables, figures and pages of the paper; see `python -m msdscore_lab.paper --help`."""
