"""What the accounts of all operators have in common."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from joinengine.operators.base import Operator


def key_schema(fields: Sequence[pa.Field]) -> str:
    """Key columns, in the types that their hashes are of, as text."""
    return base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode()


def common_account(operator: Operator, keys: Sequence[str]) -> dict[str, Any]:
    """The left schema, the inputs, the output, and the key columns, which `state --key` needs."""
    fields = [operator.schemas[0].field(name) for name in keys]
    return {
        "key_schema": key_schema(fields),
        "left": operator.schemas[0].to_string(),
        "inputs": repr(operator.inputs),
        "output": operator.output_schema.names,
    }
