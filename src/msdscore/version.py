"""The version of the package, also read by signatures and by the build."""

# A development version: its number grows with every change of a score, so that one version never means two scores.
__version__ = "0.3.0.dev1"
