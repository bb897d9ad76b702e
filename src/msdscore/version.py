"""The version, in one place for the package, the signature and the build."""

__version__ = "0.2.0"
