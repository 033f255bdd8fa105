"""docs/troubleshooting.md has a row for each message that the package raises on purpose."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import joinengine
from joinengine.model import errors

ROOT = Path(joinengine.__file__).parent
PAGE = ROOT.parent / "docs" / "troubleshooting.md"
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.JoinEngineError)
}
#: What a message shows in place of a value.
VALUE = "\0"


def words_of(node):
    """A message as it stands in the source, with VALUE for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words_of(node.left) + words_of(node.right)
    return VALUE


def sources():
    """Place -> syntax node, of the whole package."""
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            yield f"{file.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}", node


def messages():
    """Place -> message, of every error of ours that is made in the package."""
    return {
        place: words_of(node.args[0])
        for place, node in sources()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ERRORS and node.args
    }


def texts():
    """All texts of the package: a message may hold a part that another function says."""
    return {
        words_of(node) for _, node in sources() if isinstance(node, ast.Constant | ast.JoinedStr)
    }


def phrases():
    """The phrases of the page, each as a pattern of messages; `..` is any value."""
    rows = re.findall(r"^\| (`.*?) \| .*? \| .*? \|$", PAGE.read_text(), re.M)
    said = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]
    return {p: re.compile(".*".join(map(re.escape, p.split(".."))), re.S) for p in said}


def has_words(message):
    """Whether it says something itself: not only values, such as another error's message."""
    return len(re.findall(r"\w{2,}", message.replace(VALUE, " "))) > 1


def test_every_message_has_a_row_and_every_row_a_message():
    said, rows = messages(), phrases()
    assert len(said) > 150
    unnamed = {
        place: message.replace(VALUE, "..")
        for place, message in said.items()
        if has_words(message) and not any(row.search(message) for row in rows.values())
    }
    assert not unnamed, "give each of these a row in docs/troubleshooting.md"
    possible = texts() | set(said.values())
    stale = [p for p, row in rows.items() if not any(row.search(text) for text in possible)]
    assert not stale, "no message says this any more: remove it from docs/troubleshooting.md"
