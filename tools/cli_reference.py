"""Prints docs/reference/cli.md, made from the commands. The type that a --json option carries
describes what it prints."""

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

import click
import msgspec

from tenure.cli.main import main
from tenure.cli.options import JsonOption
from tenure.protocol.openapi import openapi

_ENTITY = "#/"
_SENTENCE = re.compile(r" \[[A-Z]+[0-9.]+\]")
_ELSEWHERE = {"Document": "verify.md", "Report": "conform-worker.md"}
"""Documents that have a page of their own."""

OPENING = """\
# The command line

`make docs-generated` writes this page from the commands; `tenure COMMAND --help` says the same.

Commands print data to stdout and messages to stderr. Tables are for people and may change;
`--json` is for programs, and its documents are described [below](#documents). Colours are used
only on a terminal.

| exit code | means |
|---|---|
| 0 | done; after a wait: the job succeeded; of `verify` and `doctor`: nothing is wrong |
| 1 | refused, or not successful |
| 2 | not possible: a wrong command or argument, no store, no access, no space |
| 130 | Ctrl-C while the command changed jobs; it says how many are done |

## Which store

A command uses `--url`, else the variable `TENURE_URL`, else `url` of `[tool.tenure]` in the
`pyproject.toml` of the working directory, else `sqlite:///tenure.db`:

| URL | names |
|---|---|
| `sqlite:///tenure.db`, `sqlite:////var/lib/tenure.db` | a file, relative or absolute |
| `postgresql://user@host/database` | a database |
| `http://host:7717`, `https://host` | a server; the token is in `TENURE_TOKEN` |

`migrate`, `raise-epoch`, `serve`, `tokens`, `verify` and `doctor` need the store itself. All other
commands work through a server too. Instead of `TENURE_TOKEN`, `TENURE_TOKEN_FILE` can name a file
with the token. Without either, `enqueue --app` uses the application's own token if the URL is the
application's.

`enqueue`, `worker`, `dev`, `serve`, `tokens create` and `migrate` create a SQLite file that does
not exist, and say so. No other command creates one.

```toml
[tool.tenure]
url = "postgresql:///jobs"    # put a password into TENURE_URL or ~/.pgpass instead
app = "myapp.jobs:app"        # for worker, dev and enqueue
queues = ["research=3", "mail"]  # for worker and dev
```

Flags take precedence over environment variables, and those over the project's settings. Tenure does
not search directories above the working directory.
"""

DOCUMENTS = """\
## Documents

`--json` prints one JSON document in UTF-8, with control characters escaped. Instants are RFC 3339
in UTC; fields whose names end in `_s` are seconds. A value that does not exist is `null`, with one
exception: the bodies of a job (`payload`, `result`, `checkpoint`) are omitted unless you ask for
them with `--bodies` or wait for the job. If you asked for a body and it is omitted, it does not
exist or your token may not read it. Later versions may add fields, but not remove any.

Records that a server also answers with are described [there](http.md#messages).
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what people type, in the order of `--help`."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", each) for sub, each in command.commands.items())
        else:
            yield name, command


def shape_of(command: click.Command) -> Any:
    """The type of what --json prints; None where there is no such option."""
    options = [option for option in command.params if isinstance(option, JsonOption)]
    return options[0].shape if options else None


def followed_shape_of(command: click.Command) -> Any:
    """The type of each line that --json prints with --follow; None where there is no such thing."""
    options = [option for option in command.params if isinstance(option, JsonOption)]
    return options[0].followed_shape if options else None


def page() -> str:
    """The whole page."""
    lines = [OPENING, "## Commands", ""]
    documents: dict[str, dict[str, Any]] = {}
    for name, command in commands():
        lines += _command(name, command)
        for shape in (shape_of(command), followed_shape_of(command)):
            if shape is not None and _name(shape) not in _ELSEWHERE:
                documents |= _own_schemas(shape)
    lines += [DOCUMENTS]
    for name in sorted(documents):
        lines += _document(name, documents[name])
    return "\n".join(lines).rstrip("\n") + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"tenure {name}")
    yield f"### {name}"
    yield ""
    yield f"`{' '.join([context.command_path, *command.collect_usage_pieces(context)])}`"
    yield ""
    yield inspect.cleandoc(command.help or "")
    yield ""
    shape = shape_of(command)
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None and isinstance(option, click.Option):
            flags, text = record
            yield f"- `{flags}`" + (f": {text}" if text else "")
    if shape is not None:
        yield ""
        followed = followed_shape_of(command)
        lines = "" if followed is None else f"; with `--follow`, {_shape(followed)} on each line"
        yield f"`--json` prints {_shape(shape)}{lines}."
    yield ""


def _name(shape: Any) -> str:
    [item] = get_args(shape) or [shape]
    return str(item.__name__)


def _shape(shape: Any) -> str:
    name = _name(shape)
    if name in _ELSEWHERE:
        return f"what [{_ELSEWHERE[name]}]({_ELSEWHERE[name]}) describes"
    return f"an array of {_link(name)}" if get_origin(shape) is list else f"one {_link(name)}"


def _schemas(shape: Any) -> dict[str, dict[str, Any]]:
    _, found = msgspec.json.schema_components([shape], ref_template=f"{_ENTITY}{{name}}")
    return found


def _own_schemas(shape: Any) -> dict[str, dict[str, Any]]:
    """The documents that no server answers with. An enumeration stands where it is used."""
    return {
        name: _inlined(schema, _schemas(shape))
        for name, schema in _schemas(shape).items()
        if name not in _of_the_protocol() and "enum" not in schema
    }


@cache
def _of_the_protocol() -> frozenset[str]:
    return frozenset(openapi()["components"]["schemas"])


def _inlined(schema: dict[str, Any], others: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A schema whose references to enumerations of its own are these enumerations: two modules may
    both have a `State`."""

    def resolve(part: Any) -> Any:
        if isinstance(part, list):
            return [resolve(each) for each in part]
        if not isinstance(part, dict):
            return part
        name = str(part.get("$ref", "")).removeprefix(_ENTITY)
        if name in others and "enum" in others[name] and name not in _of_the_protocol():
            return {**part, "$ref": None, "enum": others[name]["enum"]}
        return {key: resolve(value) for key, value in part.items()}

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def _document(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield _SENTENCE.sub("", " ".join(schema.get("description", "").split()))
    yield ""
    yield "| field | is |"
    yield "|---|---|"
    required = schema.get("required", ())
    for field, described in schema["properties"].items():
        # What has a default is written all the same; only what is unset is left out.
        absent = "" if field in required or "default" in described else "; may be left out"
        yield f"| `{field}` | {_type(described)}{absent} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if schema.get("$ref"):
        return _link(schema["$ref"].removeprefix(_ENTITY))
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return "instant" if schema.get("format") == "date-time" else str(kind)


def _link(name: str) -> str:
    place = "http.md" if name in _of_the_protocol() else ""
    return f"[{name}]({place}#{name.lower()})"


if __name__ == "__main__":
    sys.stdout.write(page())
