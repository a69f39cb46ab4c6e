"""How Sphinx makes the site. `tools/docs.py` puts this folder, the README and the notebooks together first."""

import os
import re

project = "hdp"
author = "the hdp contributors"
html_title = "hdp"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["hdp.css"]
html_copy_source = False
html_show_copyright = False

extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"  # done before, see tools/notebooks.py
nb_merge_streams = True  # a job's log is many writes
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
exclude_patterns = ["README.md", "jupyter_execute"]  # the first page has it

default_role = "literal"  # a name in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
autodoc_default_options = {"members": True, "imported-members": True, "undoc-members": False}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

#: How a docstring of ours says what one argument is, or what goes wrong.
_ITEM = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*|Returns|Cost): |Raises ")
_QUOTED = re.compile(r"(`[^`]*`)")


def as_restructured_text(lines):
    """The lines of a docstring with its arguments as a list, and nothing but quotes as markup."""
    shown, in_item, in_code = [], False, False
    for line in lines:
        in_code = bool(not line and in_code) or (line.startswith("    ") and (in_code or not "".join(shown[-1:])))
        if in_code or not line:
            if line and not _starts_code(shown):
                shown += ["::", ""]
            shown.append(line)
            in_item = in_item and bool(line)
            continue
        parts = _QUOTED.split(line)
        text = "".join(part if part.startswith("`") else re.sub(r"([*|_])", r"\\\1", part) for part in parts)
        if _ITEM.match(line):
            shown += [*([] if in_item else [""]), f"* {text}"]
            in_item = True
        else:
            shown.append(f"  {text.lstrip()}" if in_item else text)
    return shown


def _starts_code(shown):
    """Whether the lines so far say that code follows, or are inside it."""
    before = next((line for line in reversed(shown) if line), "")
    return before.endswith("::") or before.startswith("    ")


def _process(_app, _what, _name, _object, _options, lines):
    lines[:] = as_restructured_text(lines)


def setup(app):
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _process)
