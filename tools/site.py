"""What the site of the documentation has beyond the pages in docs/ (hooks of mkdocs.yml).

The README is its first page; CHANGELOG and CONTRIBUTING are pages; `api.md` is made of docstrings.
Links to files that are no pages, such as examples, become plain text. Links to files that do not
exist stay, and end the build. Beside each page lies its Markdown, and `llms.txt` lists all of them
for programs that read.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joinengine

ROOT = Path(__file__).parents[1]
#: Page -> the file of the repository that it shows.
BESIDE = {
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
#: Classes that users make: their arguments are shown, and what they inherit.
MADE = ("StreamAggregate", "StreamJoin")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_HIDDEN = re.compile(r"^<!--.*?-->\n", re.M | re.S)
_order = list[str]()
_markdown = dict[str, tuple[str, str]]()


def public() -> list[str]:
    """The public names, in the order of the page."""
    names = [name for name in joinengine.__all__ if not name.startswith("_")]
    return sorted(names, key=str.lower)


def api() -> str:
    """The page of the public names, to be filled by mkdocstrings."""
    options = "\n    options:\n      merge_init_into_class: true\n      inherited_members: true"
    parts = [f"::: joinengine.{name}{options * (name in MADE)}" for name in public()]
    return "\n\n".join(["# API", *parts])


def api_as_markdown(filters: list[str]) -> str:
    """The same page as text. `filters`: those of mkdocstrings, each `!` and what hides a name."""
    hidden = re.compile("|".join(one.removeprefix("!") for one in filters))
    parts = ["# API"]
    for name in public():
        found = getattr(joinengine, name)
        plain = inspect.isclass(found) and name not in MADE
        parts += [f"## `{name}{'' if plain else _signature(found)}`", inspect.getdoc(found) or ""]
        if inspect.isclass(found) and not issubclass(found, Exception):
            parts += _members(name, found, hidden)
    return "\n\n".join(parts) + "\n"


def _members(owner: str, kind: type, hidden: re.Pattern[str]) -> Iterator[str]:
    """Headings and docstrings of the methods and properties of a class, as they are written."""
    named = {name: one for base in reversed(kind.__mro__[:-1]) for name, one in vars(base).items()}
    for name, one in named.items():
        is_property = isinstance(one, property)
        if not hidden.search(name) and (is_property or inspect.isfunction(one)):
            yield f"### `{owner}.{name}{'' if is_property else _signature(one)}`"
            yield inspect.getdoc(one) or ""


def _signature(function: Any) -> str:
    """The arguments of a function, without `self`. Annotations are texts."""
    plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return re.sub(r"^\(self(, )?", "(", plain)


def on_config(config: Any) -> Any:
    """List the decisions under the entry `decisions/`."""
    found = sorted(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md"))
    for tab in config.nav:
        for pages in tab.values():
            for place, page in enumerate(pages):
                if page == {"Decisions": "decisions/"}:
                    pages[place] = {"Decisions": found}
    return config


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Note the pages in the order of the navigation."""
    _order.extend(page.file.src_uri for page in nav.pages)
    return nav


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that do not lie in docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 (only where the site is built)

    for page, name in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links as they are in the site, whose pages lie elsewhere than in the repository."""
    here = page.file.src_uri
    place = BESIDE.get(here, f"docs/{here}")
    pages = {beside: site for site, beside in BESIDE.items()}

    def linked(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        if not target or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        site = pages.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(site) is None or (path == site and path not in BESIDE.values()):
            return text if (ROOT / path).exists() else found[0]
        relative = posixpath.relpath(site, posixpath.dirname(here) or ".")
        return f"{mark}[{text}]({relative}{anchor or ''})"

    shown = _LINK.sub(linked, _HIDDEN.sub("", markdown))
    _markdown[here] = page.title or here, shown
    return shown


def on_post_build(config: Any) -> None:
    """Write the Markdown of each page, and the list of them."""
    site, lines = (
        Path(config.site_dir),
        [f"# {config.site_name}", "", f"> {config.site_description}", ""],
    )
    filters = config.plugins["mkdocstrings"].config.handlers["python"]["options"]["filters"]
    _markdown["api.md"] = "API", api_as_markdown(filters)
    for place in _order:
        title, text = _markdown[place]
        path = site / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        lines.append(f"- [{title}]({place})")
    (site / "llms.txt").write_text("\n".join([*lines, ""]))
