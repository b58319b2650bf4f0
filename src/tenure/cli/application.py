"""The application that the command line names: imports it, opens its store, and explains why that
fails.

The traceback shows the user's own frames, not those of click, Tenure and importlib.
"""

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

import tenure
from tenure.app import Tenure
from tenure.cli.errors import CouldNotRun, reported_errors
from tenure.cli.invocation import Invocation
from tenure.cli.output import say
from tenure.client.app import Application
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace
from tenure.core.vocabulary import did_you_mean
from tenure.errors import TenureError, ValidationError
from tenure.handlers.calls import Call
from tenure.handlers.registry import Handler, Registry, missing_parameter
from tenure.protocol import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from tenure.settings import shown_url, url_from_environment
from tenure.worker.application import load_registry

_JSON_NAMES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    list: "an array",
}
_FROZEN = "<frozen "
_IMPORTING = "<frozen importlib"


def import_app(import_string: str) -> object:
    """The application, imported as a worker imports it. If its own code raises an error, the
    command ends with the lines of the traceback that are the application's."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        load_registry(import_string)
    except Exception as error:  # a module may raise anything; it is shown, never swallowed
        lines = list(_own_lines(error))
        if lines:
            raise CouldNotRun(f"{import_string} cannot be imported", lines) from error
        if isinstance(error, TenureError):
            raise CouldNotRun(_missing_attribute(import_string) or str(error)) from error
        raise
    module, _, attribute = import_string.partition(":")
    found: object = attrgetter(attribute)(sys.modules[module])
    return found


def _missing_attribute(import_string: str) -> str | None:
    """The message for a module that exists and has no such attribute."""
    module, _, attribute = import_string.partition(":")
    found, name = sys.modules.get(module), attribute.partition(".")[0]
    if found is None or not name or hasattr(found, name):
        return None
    apps = [key for key, value in vars(found).items() if isinstance(value, Application)]
    otherwise = "name the Tenure object of your application, as in myapp.jobs:app"
    return f"module {module} has no attribute {name}; {did_you_mean(name, apps, otherwise)}"


def check_has_jobs(app: object, import_string: str) -> None:
    """End the command if the application has no jobs, before it creates a store."""
    registry = getattr(app, "registry", None)
    if not isinstance(registry, Registry) or registry.kinds():
        return
    attribute = import_string.partition(":")[2]
    raise CouldNotRun(
        f"{import_string} has no jobs; decorate a function with @{attribute}.job, and name here a"
        f" module that imports {attribute} and the module of the function"
    )


def load_app(import_string: str) -> Application:
    """The application, if it is a Tenure application."""
    found = import_app(import_string)
    if not isinstance(found, Application):
        raise CouldNotRun(f"{import_string[:60]!a} is not a Tenure application")
    return found


def url_for(app: object, given: str | None, *, warn: Callable[[str], None]) -> str | None:
    """The URL of the command line, else the application's own; None if neither is given. `warn` is
    called if they differ."""
    own = app.own_url if isinstance(app, Tenure) else None
    if given and own and shown_url(given) != shown_url(own):
        warn(f"--url is {shown_url(given)}; what the application enqueues goes to {shown_url(own)}")
    return given or own


def open_for(cli: Invocation, app: object) -> None:
    """Open the store of the command line, else the application's; create it if it is new."""
    cli.open(url_for(app, cli.url, warn=say), create=True, token=token_for(app, cli.url))


def token_for(app: object, given: str | None) -> str | None:
    """The application's token for a server. None if TENURE_TOKEN is set, which goes before it, or
    if --url names another server than the application's: no other server may see its token."""
    names = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
    if not isinstance(app, Tenure) or any(os.environ.get(name) for name in names):
        return None
    with reported_errors():
        there = app.own_url or url_from_environment()
    is_elsewhere = given is not None and shown_url(given) != shown_url(there)
    return None if is_elsewhere else app.own_token


def namespace_of(app: object) -> Namespace:
    """The namespace in which an application enqueues."""
    return app.namespace if isinstance(app, Application) else DEFAULT_NAMESPACE


def checked_call(
    app: Application, kind: str, payload: msgspec.Raw, options: dict[str, Any]
) -> Call[Any]:
    """The call; ends the command if the function of the kind cannot take this payload."""
    try:
        return app.call(kind, payload, **options)
    except ValidationError as wrong:
        handler = app.registry.get(Kind(kind))
        assert handler is not None  # the payload of another kind is not checked
        problem = _problem(handler, msgspec.json.decode(payload), wrong)
        raise CouldNotRun(f"kind {kind}: {problem}; {_takes(handler)}") from wrong


def _problem(handler: Handler, given: object, wrong: ValidationError) -> str:
    if given is None:
        return "no payload was given"
    if not isinstance(given, dict):
        return f"the payload is {_JSON_NAMES[type(given)]}, not an object"
    message = wrong.message.removesuffix(f" at {wrong.path}").replace("`", "")
    field = message.rpartition(" ")[2]
    if message.startswith("Object missing required field "):
        return missing_parameter(field) if field == wrong.path else f"{wrong.path} is missing"
    if message.startswith("Object contains unknown field "):
        within = wrong.path.removesuffix(field).removesuffix(".")
        return f"{within} has no field {field}" if within else handler.unknown_parameter(field)
    return f"{wrong.path}: {message[:1].lower()}{message[1:]}"


def _takes(handler: Handler) -> str:
    named = [_named(handler, each) for each in handler.parameters.values()]
    return f"its payload is an object of {', '.join(named)}" if named else "it takes no payload"


def _named(handler: Handler, parameter: inspect.Parameter) -> str:
    """A parameter with its type. Its default is not shown, because it may be a secret."""
    hint = handler.hints.get(parameter.name, Any)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    module = handler.function.__module__
    facts = [] if hint is Any else [inspect.formatannotation(hint, base_module=module)]
    facts += [] if parameter.default is inspect.Parameter.empty else ["optional"]
    return f"{parameter.name} ({', '.join(facts)})" if facts else parameter.name


def _own_lines(error: Exception) -> Iterator[str]:
    """The traceback from the application's module on, without libraries; nothing if Python did not
    start to run the module, for example because there is none of this name."""
    report = traceback.TracebackException.from_exception(error)
    names = [frame.filename for frame in report.stack]
    starts = [at for at, name in enumerate(names) if name.startswith(_IMPORTING)]
    if not starts:
        return
    inside = report.stack[starts[0] :]
    foreign = _foreign_places()
    own = [frame for frame in inside if not _is_within(frame.filename, foreign)]
    for text in [*traceback.format_list(own), *report.format_exception_only()]:
        yield from text.rstrip("\n").split("\n")


def _foreign_places() -> tuple[Path, ...]:
    """Directories of code that is not the user's: Python's, installed packages' and Tenure's."""
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "purelib", "platlib")]
    return tuple(Path(place).resolve() for place in (*installed, *tenure.__path__))


def _is_within(filename: str, places: tuple[Path, ...]) -> bool:
    path = Path(filename).resolve()
    return filename.startswith(_FROZEN) or any(path.is_relative_to(place) for place in places)
