"""docs/options.md is the table of options in Markdown."""

from __future__ import annotations

import os
from pathlib import Path

from joinengine.api.option_table import OPTIONS, SINKS

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
HEAD = """\
# Options

This page lists all options of the writer. `.option(name, value)` sets one option, `.options(..)`
sets several; names are not case-sensitive. A Spark format takes the options of every query and
those of Spark's own writer. Any other sink rejects options that it does not know. `joinengine run`
and `compare` offer some options as flags.

`make golden` writes this page from the table in `joinengine/api/option_table.py`.
"""
TITLES = ("option", "takes", "default", "flag", "since", "what it does")


def row(option):
    """A line of the page."""
    default = "" if option.default is None else f"`{option.default}`"
    flag = "" if option.flag is None else f"`--{option.flag}`"
    help_ = option.help
    if option.variable is not None:
        help_ += f" If not given, the environment variable `{option.variable}` applies."
    cells = (f"`{option.name}`", option.value.words, default, flag, option.since, help_)
    return f"| {' | '.join(cells)} |"


def page():
    """The page, as the table says it."""
    parts = [HEAD]
    of_all = [one for one in OPTIONS.values() if one.sinks == SINKS]
    groups = {"Of every query": of_all}
    for sink in SINKS:
        own = [one for one in OPTIONS.values() if one.sinks != SINKS and sink in one.sinks]
        if own:
            groups[f"Of `{sink}`"] = own
    for title, options in groups.items():
        head = f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}"
        parts.append("\n".join([f"## {title}\n", head, *map(row, options), ""]))
    return "\n".join(parts)


def test_the_page_of_options_is_the_table():
    if os.environ.get("JOINENGINE_WRITE_GOLDEN") == "1":
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "make golden writes it anew"
    assert all(f"`{name}`" in page() for name in OPTIONS)
