"""The OpenAPI 3.1 description, made of the table of routes and the messages' own types."""

from typing import Any

import msgspec

from tenure.core.events import FACTS_OF
from tenure.protocol import (
    CORRELATION_HEADER,
    LEASE_HEADER,
    PROTOCOL_VERSION,
    REQUEST_ID_HEADER,
    TRACEPARENT_HEADER,
    VERSION_HEADER,
)
from tenure.protocol.replies import Problem
from tenure.protocol.routes import PATH_FIELDS, ROUTES, Route, Shape

Json = dict[str, Any]

STATUS_TEXT = {
    200: "Answered",
    201: "Made",
    400: "The request cannot be read",
    401: "No token, or none that is valid",
    403: "Not within this token's role or scope",
    404: "There is no such thing here",
    408: "The body came too slowly; send it again",
    409: "Refused in the present state, which the body describes",
    413: "The body is over its limit",
    415: "The body is not of the media type it has to be of",
    422: "A field breaks a rule; the body names it",
    429: "Too much at once from this token; send it again after Retry-After",
    500: "A fault of the server",
    503: "The server or its store cannot answer now; send it again",
}
TRACE_HEADERS = {
    TRACEPARENT_HEADER: "W3C's: the trace that the request is in",
    CORRELATION_HEADER: "The correlation id of the caller or of the jobs it is about, "
    "percent-encoded",
}
"""What any request may have; what is malformed is ignored. [OB6]"""
_REF = "#/components/schemas/{name}"
_SPARSE = frozenset({"FactsRecord", "Progress"})
"""Answers within answers that leave out what does not apply."""
_HEADER_REF = "#/components/parameters/{name}"


def statuses(route: Route) -> list[int]:
    """Every status a route can answer with. [H8]"""
    found = {route.success, 500}
    if not route.is_public:
        found |= {400, 401, 403, 422, 429, 503}
    if route.success == 201:
        found.add(200)  # the job was there already
    if route.request_shape is not Shape.NONE:
        found |= {408, 413, 415}
    if route.not_found:
        found.add(404)
    if route.conflict:
        found.add(409)
    if route.name == "readyz":
        found.add(503)
    return sorted(found)


def openapi() -> Json:
    """The whole description."""
    kinds: list[Any] = [Problem]
    for route in ROUTES:
        kinds += [kind for kind in (route.request, route.reply) if kind is not None]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=_REF)
    for schema in components.values():
        _require_all(schema)
    components["FactsRecord"]["description"] += f" {_FACTS_IN_WORDS}"
    paths: Json = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": str(PROTOCOL_VERSION),
            "description": "Workers and clients of a Tenure coordinator, over plain HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": {name: _trace_header(name) for name in TRACE_HEADERS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_FACTS_IN_WORDS = "By the type of the event: " + "; ".join(
    f"`{kind}`: {', '.join(f'`{fact}`' for fact in facts) or 'nothing'}"
    for kind, facts in FACTS_OF.items()
)


def _require_all(schema: Json) -> None:
    """A server sends every field of an answer, whatever its default; bodies, which have none, may
    be left out. A reader fills in defaults only where the server is older than a field. [H2]"""
    is_answer = schema.get("type") == "object" and "additionalProperties" not in schema
    if not is_answer or schema["title"] in _SPARSE:
        return
    required = set(schema.get("required", ()))
    for name, described in schema["properties"].items():
        if "default" in described:
            del described["default"]
            required.add(name)
    schema["required"] = [name for name in schema["properties"] if name in required]


def _operation(route: Route) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {str(status): _response(route, status) for status in statuses(route)},
        "security": [] if route.is_public else [{"token": []}],
        "x-tenure-roles": [role.value for role in route.roles],
    }
    parameters = [*_path_parameters(route), *_query_parameters(route), *_headers(route)]
    if parameters:
        operation["parameters"] = parameters
    body = _request_body(route)
    if body is not None:
        operation["requestBody"] = body
    return operation


def _response(route: Route, status: int) -> Json:
    response: Json = {
        "description": STATUS_TEXT[status],
        "headers": {REQUEST_ID_HEADER: {"schema": {"type": "string"}}},
    }
    if status in (200, 201):
        response["content"] = _success_content(route)
    elif status == 409 and route.reply is not None:
        response["content"] = {"application/json": {"schema": _ref(route.reply)}}
    else:
        response["content"] = {"application/json": {"schema": _ref(Problem)}}
    return response


def _success_content(route: Route) -> Json:
    match route.reply_shape:
        case Shape.BYTES:
            return {"*/*": {"schema": {}}}
        case Shape.TEXT:
            return {"text/plain": {"schema": {"type": "string"}}}
        case _:
            schema = {"type": "object"} if route.reply is None else _ref(route.reply)
            return {"application/json": {"schema": schema}}


def _request_body(route: Route) -> Json | None:
    match route.request_shape:
        case Shape.JSON:
            assert route.request is not None
            content: Json = {"application/json": {"schema": _ref(route.request)}}
        case Shape.BYTES:
            content = {"*/*": {"schema": {}}}
        case _:
            return None
    return {"required": True, "content": content}


def _path_parameters(route: Route) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(PATH_FIELDS[name]),
        }
        for name in route.path_fields
    ]


def _query_parameters(route: Route) -> list[Json]:
    if route.query is None:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template=_REF)
    shape = components[route.query.__name__]
    return [
        {"name": name, "in": "query", "schema": _inlined(schema, components)}
        for name, schema in shape["properties"].items()
    ]


def _inlined(schema: Any, components: Json) -> Any:
    """A schema without references: the enums of a query are small."""
    if isinstance(schema, list):
        return [_inlined(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    return {key: _inlined(value, components) for key, value in schema.items()}


def _headers(route: Route) -> list[Json]:
    version = {
        "name": VERSION_HEADER,
        "in": "header",
        "schema": {"type": "string", "enum": [str(PROTOCOL_VERSION)]},
    }
    traces = [{"$ref": _HEADER_REF.format(name=name)} for name in TRACE_HEADERS]
    headers: list[Json] = [] if route.is_public else [version, *traces]
    if route.name == "upload-artifact":
        lease: Json = {"name": LEASE_HEADER, "in": "header", "required": True}
        headers.append({**lease, "schema": {"type": "string"}})
    return headers


def _trace_header(name: str) -> Json:
    described = {"name": name, "in": "header", "description": TRACE_HEADERS[name]}
    return {**described, "schema": {"type": "string"}}


def _ref(kind: type[Any]) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}
