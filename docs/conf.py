"""Sphinx configuration: Markdown pages, notebooks, docstrings and the help of the commands."""

import sys
from pathlib import Path

from msdscore.version import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "msdscore"
author = "The msdscore developers"
release = version = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",
    "repository_links",
]
html_theme = "furo"
html_title = f"msdscore {__version__}"
html_static_path = ["images"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with outputs; tests execute them
autodoc_typehints = "description"
highlight_language = "bash"  # code blocks without a language are shell commands
copybutton_prompt_text = "$ "
exclude_patterns = ["build"]
suppress_warnings = ["myst.header"]
