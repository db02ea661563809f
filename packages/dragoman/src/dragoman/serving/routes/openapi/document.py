"""The OpenAPI document, built from the routes with their operations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ...._version import VERSION
from ....core.errors import (
    AuthenticationError,
    BodyTooLarge,
    DragomanError,
    EngineError,
    EngineTimeout,
    ModelNotFound,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestError,
    UnsupportedMediaType,
)
from ....dialects.error_envelope import ErrorEnvelope
from ....dialects.json_body import JsonBody
from ....dialects.rate_limit_headers import render_anthropic_rate_limits, render_openai_rate_limits
from ....dialects.registry import ENVELOPES
from ....dialects.responses.event_schemas import RESPONSE_EVENTS
from ...api_description import BINARY, EVENTS, FORM, JSON, ApiResponse, Form
from ...auth import KEY_HEADERS, Access
from ...handler_result import CompleteResponse
from ...http_request import HttpRequest
from ...route import Operation, Route
from .schemas import OpenApiObject, Schemas, build_any_of

_BINARY_STRING: OpenApiObject = {"type": "string", "format": "binary"}
# A placeholder in a path, such as `{id}`, or `{model:path}` with a Starlette converter.
_PLACEHOLDER = re.compile(r"\{(\w+)(?::\w+)?\}")
_INTRODUCTION = """\
Every route of this server that your key may use, with its requests, responses and events.

- `GET` includes `HEAD`.
- A body with a content type other than JSON is rejected with 415, an unsupported method with 405 and `Allow`.
- The schema of `text/event-stream` and of `application/x-ndjson` is that of one event or line. A stream of OpenAI's \
kind ends with the data `[DONE]`. A comment line is a keepalive.
- Unknown fields of a request are reported in the header `x-dragoman-warnings`, and rejected by a strict server. With \
`x-dragoman-warnings: body` the object of a response also lists its warnings, in `dragoman_warnings`.
"""  # noqa: E501
_HEADERS: Mapping[str, tuple[object, str]] = {
    "x-request-id": (str, "The request's id: the client's own if it sent a plain one."),
    "request-id": (str, "The same, for Anthropic's SDK."),
    "openai-processing-ms": (int, "Milliseconds until the response started."),
    "openai-version": (str, "The version of OpenAI's API."),
    "x-dragoman-warnings": (
        str,
        "The parts of the request that have no effect, separated by semicolons.",
    ),
}
_ERROR_HEADERS: Mapping[str, tuple[object, str]] = {
    "retry-after": (int, "Seconds after which to retry."),
    "x-should-retry": (str, "`false` if a retry does not help, as with the 429 of a budget."),
    "www-authenticate": (str, "With a 401."),
    "allow": (str, "The route's methods, with a 405."),
}
_CACHE_HEADERS: Mapping[str, tuple[object, str]] = {
    "etag": (str, "The version of the response, for `If-None-Match`."),
}
_LOCATION_HEADERS: Mapping[str, tuple[object, str]] = {
    "location": (str, "The address of the page.")
}
_LIMITED = (("requests", "Requests a minute"), ("tokens", "Tokens a minute"))
_OPENAI_LIMIT_HEADERS: Mapping[str, tuple[object, str]] = {
    f"x-ratelimit-{field}-{name}": (type, f"{text} of the key{about}, where it has this limit.")
    for name, text in _LIMITED
    for field, type, about in (
        ("limit", int, ""),
        ("remaining", int, " that are left"),
        ("reset", str, ", time until all are available, such as `1m30s`"),
    )
}
_ANTHROPIC_LIMIT_HEADERS: Mapping[str, tuple[object, str]] = {
    f"anthropic-ratelimit-{name}-{field}": (
        type,
        f"{text} of the key{about}, where it has this limit.",
    )
    for name, text in _LIMITED
    for field, type, about in (
        ("limit", int, ""),
        ("remaining", int, " that are left"),
        ("reset", str, ", time when all are available (RFC 3339)"),
    )
}
_ALL_HEADERS = {
    **_HEADERS,
    **_ERROR_HEADERS,
    **_CACHE_HEADERS,
    **_LOCATION_HEADERS,
    **_OPENAI_LIMIT_HEADERS,
    **_ANTHROPIC_LIMIT_HEADERS,
}
# The errors stand for their statuses, which depend on the envelope; their messages are
# not used.
_BODY_ERRORS = (RequestError("m"), BodyTooLarge("m"), UnsupportedMediaType("m"))
_GENERATION_ERRORS = (
    RequestError("m"),
    ModelNotFound("m"),
    RateLimited("m"),
    EngineError("m"),
    Overloaded("m"),
    EngineTimeout("m"),
)
_GENERATION_PARAMETERS: Mapping[str, tuple[object, str]] = {
    "x-dragoman-timeout": (
        float,
        "Seconds after which the answer ends; no longer than the server's own limit.",
    ),
    "x-data-parallel-rank": (
        int,
        "The engine core that runs the request, where an engine has several.",
    ),
    "x-session-id": (
        str,
        "A hint: requests of one session, which vLLM's scheduler may treat alike.",
    ),
    "x-dragoman-reply": (str, "A scripted reply as JSON, for engines that can be scripted."),
    "x-dragoman-fault": (str, "A fault to inject as JSON, for engines that can be scripted."),
}
_PARAMETERS: Mapping[str, tuple[object, str]] = {
    "x-request-id": (
        str,
        "An id for logs: up to 128 letters, digits, dots, hyphens and underscores.",
    ),
    "x-dragoman-warnings": (str, "`body`: list warnings in the body too."),
    "if-none-match": (str, "The ETag of a response that the client has."),
    "anthropic-version": (str, "Asks for Anthropic's format of the response and of errors."),
    **_GENERATION_PARAMETERS,
}


def describe_api(routes: Iterable[Route], *, requires_key: bool, is_admin: bool) -> bytes:
    """Build the document.

    requires_key: whether API keys are configured.
    is_admin: whether to include the routes for administrators.
    """
    described = [
        (route, method, operation)
        for route in routes
        if is_admin or route.access is not Access.ADMIN
        for method, operation in route.operations.items()
    ]
    schemas = _build_schemas(operation for _, _, operation in described)
    builder = _DocumentBuilder(schemas, requires_key)
    paths: dict[str, OpenApiObject] = {}
    for route, method, operation in described:
        paths.setdefault(to_path_template(route.path), {})[method.lower()] = builder.describe(
            route, method, operation
        )
    if "/v1/responses" in paths:
        create = {
            "type": "object",
            "properties": {"type": {"const": "response.create"}},
            "required": ["type"],
        }
        # OpenAPI 3.1 has no WebSockets, so an extension holds the schemas of both
        # directions.
        paths["/v1/responses"]["x-websocket"] = {
            "description": "The same path as a WebSocket: one request a frame, and one event a "
            "frame "
            "(docs/websocket.md).",
            "send": {"allOf": [{"$ref": "#/components/schemas/ResponseRequest"}, create]},
            "receive": {"anyOf": [schemas.refer(event) for event in RESPONSE_EVENTS]},
        }
    document: OpenApiObject = {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": VERSION,
            "summary": "An inference API server.",
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [
            {"name": tag} for tag in dict.fromkeys(operation.tag for _, _, operation in described)
        ],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": builder.describe_errors(),
            "headers": {
                name: {"description": text, "schema": schemas.refer(type)}
                for name, (type, text) in sorted(_ALL_HEADERS.items())
            },
            "parameters": {
                name: {
                    "name": name,
                    "in": "header",
                    "description": text,
                    "schema": schemas.refer(type),
                }
                for name, (type, text) in _PARAMETERS.items()
            },
        },
    }
    if requires_key:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            **{name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
            **{
                name: {"type": "apiKey", "in": "query", "name": name}
                for route, _, _ in described
                if (name := route.envelope.key_parameter) is not None
            },
        }
    return msgspec.json.encode(document)


def to_path_template(path: str) -> str:
    """Return a route's path as OpenAPI writes it, without the converters of its
    placeholders.
    """
    return _PLACEHOLDER.sub(r"{\1}", path)


def _build_schemas(operations: Iterable[Operation]) -> Schemas:
    bodies: list[JsonBody] = []
    requests: list[object] = []
    answers: list[object] = [
        *RESPONSE_EVENTS,
        *(envelope.body for envelope in ENVELOPES),
    ]
    for operation in operations:
        bodies += [body for body in operation.bodies if isinstance(body, JsonBody)]
        requests += [body for body in operation.bodies if isinstance(body, type)]
        requests += [
            type
            for body in operation.bodies
            if isinstance(body, Form)
            for type, _ in body.fields.values()
        ]
        requests += [query.type for query in operation.query]
        answers += [type for response in operation.responses for type in response.types]
    requests += [type for headers in (_ALL_HEADERS, _PARAMETERS) for type, _ in headers.values()]
    return Schemas(bodies, requests, answers)


class _DocumentBuilder:
    """Builds the OpenAPI operations of routes, and collects the envelopes of their
    errors for `describe_errors`.
    """

    def __init__(self, schemas: Schemas, requires_key: bool) -> None:
        self._schemas = schemas
        self._requires_key = requires_key
        self._errors: dict[str, tuple[ErrorEnvelope, ...]] = {}

    def describe(self, route: Route, method: str, operation: Operation) -> OpenApiObject:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PLACEHOLDER.findall(route.path)
        ]
        for query in operation.query:
            schema = self._schemas.refer(query.type)
            schema = {"type": "array", "items": schema} if query.is_list else schema
            described_query = {
                "name": query.name,
                "in": "query",
                "description": query.description,
                "schema": schema,
            }
            parameters.append(described_query)
        names = [
            "x-request-id",
            "x-dragoman-warnings",
            *(_GENERATION_PARAMETERS if operation.generates else ()),
        ]
        names += [
            name
            for client in route.envelope.clients
            for name in client.client_headers
            if name in _PARAMETERS
        ]
        if operation.is_cached:
            names.append("if-none-match")
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in names]
        # Operation ids must be unique: paths with and without a slash at the end would
        # get the same one.
        suffix = "_slash" if route.path.endswith("/") and route.path != "/" else ""
        described: OpenApiObject = {
            "operationId": re.sub(
                r"\W+", "_", f"{method.lower()}{to_path_template(route.path)}"
            ).strip("_")
            + suffix,
            "tags": [operation.tag],
            "summary": operation.summary,
            "parameters": parameters,
            "x-dragoman-access": route.access.value,
        }
        if operation.description:
            described["description"] = operation.description
        if operation.bodies:
            described["requestBody"] = self._describe_body(operation)
        described["responses"] = self._describe_responses(route, operation)
        if self._requires_key:
            # Each alone suffices.
            names = ["bearer", *KEY_HEADERS]
            if route.envelope.key_parameter is not None:
                names.append(route.envelope.key_parameter)
            is_public = route.access is Access.PUBLIC
            described["security"] = [] if is_public else [{name: []} for name in names]
        return described

    def _describe_body(self, operation: Operation) -> OpenApiObject:
        forms = [body for body in operation.bodies if isinstance(body, Form)]
        if forms:
            properties = {
                name: {**self._schemas.refer(type), "description": text}
                for name, (type, text) in forms[0].fields.items()
            }
            properties["file"] = {
                "type": "string",
                "format": "binary",
                "description": properties["file"]["description"],
            }
            schema: OpenApiObject = {
                "type": "object",
                "properties": properties,
                "required": ["file"],
            }
            return {"required": True, "content": {FORM: {"schema": schema}}}
        alternatives = [
            {"$ref": f"#/components/schemas/{body.name}"}
            if isinstance(body, JsonBody)
            else self._schemas.refer(body)
            for body in operation.bodies
        ]
        content: OpenApiObject = {JSON: {"schema": build_any_of(alternatives)}}
        if operation.accepts_binary:
            content[BINARY] = {"schema": _BINARY_STRING}
        return {"required": not operation.is_body_optional, "content": content}

    def _describe_responses(self, route: Route, operation: Operation) -> OpenApiObject:
        responses: OpenApiObject = {}
        envelopes = operation.envelopes or (route.envelope,)
        dialects = _add_client_envelopes(envelopes)
        names = (
            *_HEADERS,
            *(_CACHE_HEADERS if operation.is_cached else ()),
            *_name_limit_headers(dialects),
        )
        headers = _refer_to_headers(names)
        for response in operation.responses:
            described = responses.setdefault(
                str(response.status),
                {"description": response.description or "The response.", "headers": headers},
            )
            if 300 <= response.status < 400:
                described["headers"] = headers | _refer_to_headers(_LOCATION_HEADERS)
            if response.media is not None:
                described.setdefault("content", {})[response.media] = self._describe_content(
                    response
                )
        if operation.is_cached:
            responses["304"] = {
                "description": "The client has the current version.",
                "headers": headers,
            }
        name = (
            re.sub(r"\W+", "", "".join(envelope.name.title() for envelope in envelopes)) + "Error"
        )
        self._errors[name] = envelopes
        reference = {"$ref": f"#/components/responses/{name}"}
        expected: list[DragomanError] = (
            []
            if route.access is Access.PUBLIC
            else [AuthenticationError("m"), PermissionDenied("m")]
        )
        if operation.bodies:
            expected += _BODY_ERRORS
        if operation.generates:
            expected += _GENERATION_ERRORS
        if _PLACEHOLDER.search(route.path):
            expected.append(NotFound("m"))
        statuses = sorted(
            {envelope.map_status(error) for envelope in dialects for error in expected}
        )
        # Any route may respond with other errors, such as 421 for another host name.
        errors = {str(status): reference for status in statuses} | {
            "4XX": reference,
            "5XX": reference,
        }
        return {
            **responses,
            **{status: error for status, error in errors.items() if status not in responses},
        }

    def _describe_content(self, response: ApiResponse) -> OpenApiObject:
        if response.media == BINARY:
            return {"schema": _BINARY_STRING}
        if not response.types:
            return {"schema": {"type": "string"}}
        schema = build_any_of([self._schemas.refer(type) for type in response.types])
        if response.media != EVENTS:
            return {"schema": schema}
        # As OpenAPI 3.2 describes server-sent events: `data` is a string that contains
        # JSON.
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
        properties = {"event": {"type": "string"}, "data": data}
        return {"schema": {"type": "object", "properties": properties, "required": ["data"]}}

    def describe_errors(self) -> OpenApiObject:
        """Build the error responses to which the operations built so far refer."""
        described: OpenApiObject = {}
        for name, envelopes in sorted(self._errors.items()):
            resolved = _add_client_envelopes(envelopes)
            types = dict.fromkeys(envelope.body for envelope in resolved)
            names = (
                *_HEADERS,
                *_ERROR_HEADERS,
                *_name_limit_headers(resolved),
            )
            described[name] = {
                "description": f"An error, in the format of "
                f"{' or '.join(envelope.name for envelope in envelopes)}.",
                "headers": _refer_to_headers(names),
                "content": {
                    JSON: {"schema": build_any_of([self._schemas.refer(type) for type in types])}
                },
            }
        return described


def _add_client_envelopes(envelopes: Iterable[ErrorEnvelope]) -> list[ErrorEnvelope]:
    """Return these envelopes and those for vendors' own clients."""
    return [resolved for envelope in envelopes for resolved in (envelope, *envelope.clients)]


def _name_limit_headers(envelopes: Iterable[ErrorEnvelope]) -> list[str]:
    """Return the names of the rate limit headers that these dialects send."""
    renderers = {envelope.render_rate_limits for envelope in envelopes}
    return [
        *(_OPENAI_LIMIT_HEADERS if render_openai_rate_limits in renderers else ()),
        *(_ANTHROPIC_LIMIT_HEADERS if render_anthropic_rate_limits in renderers else ()),
    ]


def _refer_to_headers(names: Iterable[str]) -> OpenApiObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def build_cached_response(
    http: HttpRequest, body: bytes, content_type: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> CompleteResponse:
    """Build a response with an ETag, or a 304 if the client has the current version
    (RFC 9110, 13.1.2).
    """
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    known_tags = [
        value.strip().removeprefix("W/")
        for value in http.headers.get("if-none-match", "").split(",")
    ]
    all_headers = [
        *http.build_headers((b"content-type", content_type)),
        (b"etag", tag.encode()),
        # `no-cache` requires revalidation: an update of the server changes the body.
        (b"cache-control", b"no-cache"),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]
    if tag in known_tags or "*" in known_tags:
        return CompleteResponse(304, all_headers, b"", len(body))
    return CompleteResponse(200, all_headers, body, len(body))
