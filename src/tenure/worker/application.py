"""The application a worker serves, imported by its name `module:app`.

The name comes from the command line, never from a job.
"""

import importlib
from types import ModuleType
from typing import NamedTuple

from tenure.errors import InvalidInput
from tenure.handlers.registry import Registry
from tenure.ports import Transactions


class LoadedApplication(NamedTuple):
    """What a child needs of the application."""

    registry: Registry
    transactions: Transactions | None
    """Its way to the handlers' own transactions, if it has one."""


def load_registry(import_string: str) -> Registry:
    """The handlers of `module:app`."""
    return load_application(import_string).registry


def load_application(import_string: str) -> LoadedApplication:
    """The application `module:app`."""
    module_name, separator, attribute = import_string.partition(":")
    if not (module_name and separator and attribute) or module_name.startswith("."):
        raise InvalidInput(
            "app", f"{import_string[:60]!a} is not MODULE:APP", hint="name it as in myapp.jobs:app"
        )
    found: object = _import(module_name)
    for name in attribute.split("."):
        found = getattr(found, name, None)
    registry = getattr(found, "registry", None)
    if not isinstance(registry, Registry):
        raise InvalidInput(
            "app",
            f"{import_string[:60]!a} has no handlers",
            hint="name the Tenure object of your application, as in myapp.jobs:app",
        )
    registry.check()
    return LoadedApplication(
        registry,
        transactions=found if isinstance(found, Transactions) else None,
    )


def _import(module_name: str) -> ModuleType:
    """Import the module. Exceptions of the application's own code pass through."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise  # a module that the application imports
        raise InvalidInput(
            "app",
            f"there is no module {missing.name[:60]!a}",
            hint=f"run it where `import {missing.name[:60]}` works",
        ) from missing
