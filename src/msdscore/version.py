"""The version of the package, also read by signatures and by the build."""

# It grows with every change of a score, so that one version never means two scores (docs/stable.md).
__version__ = "1.0.0"
