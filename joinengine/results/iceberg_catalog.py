"""The catalogue of Iceberg tables: finds tables, and words errors without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import without_secrets
from joinengine.results.table_fit import reason_of

#: Properties whose values messages may show.
_OPEN = ("type", "warehouse")


def library() -> Any:
    """The package `pyiceberg`. Raises InvalidRequest, with what to install, if it is missing."""
    try:
        import pyiceberg.catalog  # noqa: PLC0415 # an extra
    except ImportError:
        raise InvalidRequest(
            "iceberg: Iceberg tables need the package pyiceberg, which this Python lacks; run pip "
            "install 'joinengine[iceberg]'"
        ) from None
    return pyiceberg


def errors() -> Any:
    """The package's module of errors."""
    from pyiceberg import exceptions  # noqa: PLC0415 # an extra

    return exceptions


@dataclass
class Catalog:
    """A catalogue by its name, which PyIceberg's configuration may have, and further properties."""

    name: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._loaded: Any = None

    def __str__(self) -> str:
        return f"the catalogue {self.name!r}"

    def table(self, name: str) -> Any:
        """A table as it is now. Raises the errors of the package."""
        if self._loaded is None:
            library()
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415 # an extra

            self._loaded = load_catalog(self.name, **self.properties)
        return self._loaded.load_table(name)

    def forget(self) -> None:
        """Connect again for the next table."""
        self._loaded = None

    def checked(self, name: str) -> Any:
        """As `table`, before a query starts. Raises InvalidRequest for any error."""
        if "." not in name.strip("."):
            raise InvalidRequest(
                f"iceberg: expected a table with its namespace, such as 'shop.sales', found "
                f"{name!r}"
            )
        library()
        try:
            return self.table(name)
        except (errors().NoSuchTableError, errors().NoSuchNamespaceError):
            raise InvalidRequest(
                f"iceberg: the table {name} does not exist in {self}; create it, or correct the "
                "name"
            ) from None
        except ValueError as error:
            raise InvalidRequest(
                f"iceberg: {self} is not configured ({self.reason(error)}); give the option "
                "catalog.uri, or configure it in .pyiceberg.yaml"
            ) from None
        except Exception as error:
            raise InvalidRequest(
                f"iceberg: {self} does not answer ({self.reason(error)}); start it, or correct "
                "the options that begin with catalog."
            ) from error

    def reason(self, error: BaseException) -> str:
        """The first line of an error, without secrets from the properties."""
        text = without_secrets(reason_of(error)).replace("using --uri, the", "it in the")
        for name, value in self.properties.items():
            if name not in _OPEN and len(value) > 3:
                text = text.replace(value, "..")
        return text
