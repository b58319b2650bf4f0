"""Prints docs/reference/http.md, made from the table of routes."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from tenure.core.events import FACTS_OF
from tenure.core.vocabulary import EventType
from tenure.protocol import LEASE_HEADER
from tenure.protocol.openapi import STATUS_TEXT, TRACE_HEADERS, openapi, statuses
from tenure.protocol.routes import PATH_FIELDS, ROUTES, Route, Shape

_ENTITY = "#/components/schemas/"
_PATTERNS = {name: msgspec.json.schema(kind)["pattern"] for name, kind in PATH_FIELDS.items()}

OPENING = """\
# HTTP

`make docs-generated` writes this page from the table of routes. The rules are in
[the specification](../spec/http.md); a running server describes the same as OpenAPI 3.1 at
`/openapi.json`.

Requests and answers are JSON, sent as `Content-Type: application/json`. Tokens are sent as
`Authorization: Bearer TOKEN`. Names in a path are percent-encoded where they contain a slash.
"""


def page() -> str:
    """The whole page."""
    schemas = openapi()["components"]["schemas"]
    lines = [OPENING, "## Routes", ""]
    lines += ["| route | for | sends | receives | |", "|---|---|---|---|---|"]
    lines += [_row(route) for route in ROUTES]
    lines += ["", "## Statuses", "", "| status | means | routes |", "|---|---|---|"]
    lines += [_status(status) for status in sorted(STATUS_TEXT)]
    lines += ["", "## Headers", ""]
    lines += ["Any request may say which traces and undertakings it belongs to:", ""]
    lines += ["| header | is |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in TRACE_HEADERS.items()]
    lines += ["", "## Queries", ""]
    lines += [
        "A query is the part of an address after `?`. Values that can be several are repeated."
    ]
    for query in dict.fromkeys(route.query for route in ROUTES if route.query is not None):
        lines += _query(query)
    lines += ["", "## Messages", ""]
    lines += ["A field without a default has to be there.", ""]
    for name in sorted(schemas):
        lines += _message(name, schemas[name])
        if name == "FactsRecord":
            lines += ["| event | its `payload` may have |", "|---|---|"]
            lines += [f"| `{kind}` | {_facts(kind)} |" for kind in FACTS_OF]
            lines += [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _facts(kind: EventType) -> str:
    return ", ".join(f"`{fact}`" for fact in FACTS_OF[kind]) or "nothing"


def _row(route: Route) -> str:
    roles = ", ".join(role.value for role in route.roles) or "everybody"
    if route.about_all:
        roles += f"; not if limited to {' or '.join(route.about_all)}"
    match route.request_shape:
        case Shape.JSON:
            assert route.request is not None
            sends = _link(route.request.__name__)
        case Shape.BYTES:
            sends = f"bytes, under the header `{LEASE_HEADER}`"
        case _:
            sends = ""
    receives = _link(route.reply.__name__) if route.reply is not None else route.reply_shape.value
    address = f"`{route.method} {route.path}`"
    return f"| {address} | {roles} | {sends} | {receives} | {route.summary} |"


def _status(status: int) -> str:
    having = [route.name for route in ROUTES if status in statuses(route)]
    named = "every route" if len(having) == len(ROUTES) else ", ".join(having)
    if len(having) > 12 and len(having) < len(ROUTES):
        named = f"{len(having)} routes, as OpenAPI says"
    return f"| {status} | {STATUS_TEXT[status]} | {named} |"


def _query(query: type[Any]) -> Iterator[str]:
    asked = [route for route in ROUTES if route.query is query]
    described = openapi()["paths"][asked[0].path][asked[0].method.lower()]["parameters"]
    yield ""
    yield ", ".join(f"`{route.method} {route.path}`" for route in asked) + ":"
    yield ""
    yield "| parameter | is | default |"
    yield "|---|---|---|"
    for parameter in described:
        if parameter.get("in") == "query":
            schema = parameter["schema"]
            yield f"| `{parameter['name']}` | {_type(schema)} | {_default(schema)} |"


def _message(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if schema.get("description"):
        yield " ".join(schema["description"].split()).partition(" By the type of the event:")[0]
        yield ""
    if "enum" in schema:
        yield f"One of {', '.join(f'`{word}`' for word in schema['enum'])}."
        yield ""
    elif schema.get("type") == "array":
        yield f"An array of {len(schema['prefixItems'])} values, in the order of the job's policy."
        yield ""
    elif schema.get("properties"):
        required = set(schema.get("required", ()))
        yield "| field | is | default |"
        yield "|---|---|---|"
        for field, described in schema["properties"].items():
            default = "" if field in required else _default(described)
            yield f"| `{field}` | {_type(described)} | {default} |"
        yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"].removeprefix(_ENTITY))
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}{_bounds(schema)}"
    if schema.get("format") == "date-time":
        return "instant"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    low = schema.get("minimum", schema.get("minLength", schema.get("minItems")))
    high = schema.get("maximum", schema.get("maxLength", schema.get("maxItems")))
    pattern = schema.get("pattern")
    parts = []
    if pattern == _PATTERNS["name"]:
        return ", a name"
    if pattern == _PATTERNS["job_id"]:
        return ", a UUID"
    if low is not None:
        parts.append(f"from {low:g}")
    if high is not None:
        parts.append(f"up to {high:g}" if high < 10**6 or high % 1 else f"up to {int(high)}")
    return f", {' '.join(parts)}" if parts else ""


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return "left out"
    default = schema["default"]
    if default is None or isinstance(default, bool):
        return json.dumps(default)
    if isinstance(default, dict):
        return "its defaults"
    return f"`{default}`" if default not in ("", [], ()) else "empty"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


if __name__ == "__main__":
    sys.stdout.write(page())
