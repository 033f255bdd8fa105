"""The package that parses SQL, an extra: if it is missing, an error says how to install it.

All modules of SQL import it from here, so it does not matter which of them is loaded first.
"""

from __future__ import annotations

from joinengine.model.errors import InvalidRequest

try:
    import sqlglot
    from sqlglot import errors, exp, parser, tokens
except ImportError:
    raise InvalidRequest(
        "sql needs the package sqlglot; run: pip install 'joinengine[sql]'"
    ) from None

__all__ = ["errors", "exp", "parser", "sqlglot", "tokens"]
