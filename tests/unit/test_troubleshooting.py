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


def messages_and_texts():
    """Place -> message, of every error of ours that is made in the package; and all its texts.

    A message may hold a part that another function says.
    """
    said, texts = {}, set()
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                texts.add(words_of(node))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ERRORS and node.args:
                    place = f"{file.relative_to(ROOT.parent)}:{node.lineno}"
                    said[place] = words_of(node.args[0])
    return said, texts


def phrases():
    """The phrases of the page."""
    rows = re.findall(r"^\| (`.*?) \| .*? \| .*? \|$", PAGE.read_text(), re.M)
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]


def says(text, phrase):
    """Whether the parts of a phrase stand in a text in their order; `..` is any value."""
    end = 0
    for part in phrase.split(".."):
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def has_words(message):
    """Whether it says something itself: not only values, such as another error's message."""
    return len(re.findall(r"\w{2,}", message.replace(VALUE, " "))) > 1


def test_every_message_has_a_row_and_every_row_a_message():
    (said, texts), rows = messages_and_texts(), phrases()
    assert len(said) > 150
    unnamed = {
        place: message.replace(VALUE, "..")
        for place, message in said.items()
        if has_words(message) and not any(says(message, row) for row in rows)
    }
    assert not unnamed, "give each of these a row in docs/troubleshooting.md"
    possible = [*said.values(), *texts]  # nearly all rows are of whole messages
    stale = [row for row in rows if not any(says(text, row) for text in possible)]
    assert not stale, "no message says this any more: remove it from docs/troubleshooting.md"
