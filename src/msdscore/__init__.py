"""Judge image captions without references, and see which words the picture does not support."""

from msdscore.version import __version__ as __version__
