"""The site's build: Sphinx, MyST and Furo; `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "taskmesh"
author = copyright = "the taskmesh authors"  # noqa: A001  Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
smartquotes = False  # -- is an option's
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "taskmesh"
html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["numpy", "pandas", "pyarrow", "pyspark"]  # the site is built without Spark
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
default_role = "code"  # docstrings write `name` for code
nitpick_ignore_regex = [("py:.*", r"(?!taskmesh\.).*")]  # other packages' pages are elsewhere
