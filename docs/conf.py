"""How the documentation is built: Markdown pages, and the library's own docstrings."""

from msdscore.version import __version__

project = "msdscore"
author = "The msdscore developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"msdscore {__version__}"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_mock_imports: list[str] = []
exclude_patterns = ["build"]
suppress_warnings = ["myst.xref_missing", "myst.header"]
