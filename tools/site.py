"""What the site of the documentation has beyond the pages in docs/ (hooks of mkdocs.yml).

The README is its first page; CHANGELOG and CONTRIBUTING are pages; `api.md` is made of docstrings.
Links to files that are no pages, such as examples, become plain text. Beside each page lies its
Markdown, and `llms.txt` lists all of them for programs that read.
"""

from __future__ import annotations

import posixpath
import re
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
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_HIDDEN = re.compile(r"^<!--.*?-->\n", re.M | re.S)
_order = list[str]()
_markdown = dict[str, tuple[str, str]]()


def api() -> str:
    """The page of the public names, in the order of the package."""
    names = [name for name in joinengine.__all__ if not name.startswith("_")]
    return "\n\n".join(
        ["# API", *(f"::: joinengine.{name}" for name in sorted(names, key=str.lower))]
    )


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
            return text
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
    for place in _order:
        title, text = _markdown[place]
        path = site / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        lines.append(f"- [{title}]({place})")
    (site / "llms.txt").write_text("\n".join([*lines, ""]))
