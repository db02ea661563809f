"""Check responses against the OpenAPI document.

The schemas are closed here: an undeclared field is a difference too. The published ones
are open, so that a newer server's fields do not break clients.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import jsonschema_rs

from dragoman.launch import build_models
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.serving.clock import SystemClock
from dragoman.serving.http_metrics import HttpMetrics
from dragoman.serving.route import Route
from dragoman.serving.routes.openapi.document import describe_api, to_path_template
from dragoman.serving.routes.table import Features, build_routes
from dragoman.settings import Settings

JsonObject = dict[str, Any]
REF = "#/components/schemas/"
TRANSPORT_HEADERS = frozenset(
    {
        "content-type",
        "content-length",
        "cache-control",
        "x-accel-buffering",
        "connection",
        "x-content-type-options",
    }
    | {"content-security-policy", "referrer-policy"}
)
"""Headers of HTTP itself and for browsers, which OpenAPI documents do not list."""


@cache
def routes() -> tuple[Route, ...]:
    models = build_models(Settings(model="scripted"), SystemClock())
    groups = build_routes(Features(), ModelMetrics(models, lambda: 0.0), HttpMetrics())
    return tuple(route for group in groups.values() for route in group)


@cache
def document() -> JsonObject:
    """Return the document with all routes."""
    return json.loads(describe_api(routes(), requires_key=False, is_admin=True))


def resolve(value: JsonObject) -> JsonObject:
    found: Any = value
    while "$ref" in found:
        reference = found["$ref"]
        found = document()
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
    return found


def find_operation(method: str, path: str) -> JsonObject | None:
    """path: as the application's table has it."""
    return document()["paths"].get(to_path_template(path), {}).get(method.lower())


@cache
def _closed_components() -> JsonObject:
    """Return the components, in which objects with declared properties allow no others
    except requested warnings.
    """
    closed: JsonObject = json.loads(json.dumps(document()["components"]))
    for name, schema in closed["schemas"].items():
        if "additionalProperties" not in schema and name not in _requests():
            schema["additionalProperties"] = False
            schema["properties"]["dragoman_warnings"] = {
                "type": "array",
                "items": {"type": "string"},
            }
    return closed


@cache
def _requests() -> frozenset[str]:
    """Return the components that requests refer to."""
    bodies = [
        content["schema"]
        for item in document()["paths"].values()
        for operation in item.values()
        if "requestBody" in operation
        for content in operation["requestBody"]["content"].values()
    ]
    found: set[str] = set()
    pending = re.findall(REF + r"(\w+)", json.dumps(bodies))
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += re.findall(
                REF + r"(\w+)", json.dumps(document()["components"]["schemas"][name])
            )
    return frozenset(found)


_VALIDATORS: dict[str, jsonschema_rs.Draft202012Validator] = {}


def find_errors(schema: JsonObject, value: object) -> list[str]:
    """Yield the differences of the value from the schema."""
    key = json.dumps(schema)
    if key not in _VALIDATORS:
        _VALIDATORS[key] = jsonschema_rs.Draft202012Validator(
            {**schema, "components": _closed_components()}
        )
    # The message contains the whole value.
    return [
        f"{'/'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in _VALIDATORS[key].iter_errors(value)
    ]


def check_response(
    method: str, path: str, status: int, headers: dict[str, str], body: bytes
) -> list[str]:
    """Yield the differences of a response from the description of its route.

    path: the route's path, with parameters.
    """
    operation = find_operation(method, path)
    if operation is None:
        return [f"{method} {path} is not described"]
    responses = operation["responses"]
    if (found := responses.get(str(status), responses.get(f"{status // 100}XX"))) is None:
        return [f"the status {status} is not described"]
    response = resolve(found)
    undescribed = headers.keys() - response["headers"].keys() - TRANSPORT_HEADERS
    differences = [f"the header {name} is not described" for name in sorted(undescribed)]
    media = headers.get("content-type", "").partition(";")[0]
    content = response.get("content", {})
    if not body or (not content and body == b""):
        return differences
    if media not in content:
        return [*differences, f"the type {media} is not described"]
    for value in read_values(media, body):
        differences += find_errors(find_value_schema(content, media), value)
    return differences


def find_value_schema(content: JsonObject, media: str) -> JsonObject:
    """Return the schema of the values that `read_values` yields; of an event, its data."""
    schema = content[media]["schema"]
    return schema["properties"]["data"]["contentSchema"] if media == "text/event-stream" else schema


def read_values(media: str, body: bytes) -> Iterator[object]:
    """Yield the JSON values of a body: one, or those of the events or lines of a
    stream.
    """
    match media:
        case "application/json":
            yield json.loads(body)
        case "application/x-ndjson" | "application/x-jsonl":
            yield from (json.loads(line) for line in body.splitlines() if line)
        case "text/event-stream":
            lines = (line for line in body.decode().split("\n") if line.startswith("data:"))
            yield from (json.loads(line[5:]) for line in lines if line[5:].strip() != "[DONE]")
        case _:
            """Not JSON."""


class PropertyCounter:
    """Counts which properties of the described objects occur in values, by component."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()

    def count(self, schema: JsonObject, value: Any) -> None:
        if "anyOf" in schema:
            fitting = (each for each in schema["anyOf"] if not find_errors(each, value))
            for each in islice(fitting, 1):
                self.count(each, value)
        elif "$ref" in schema:
            name = schema["$ref"].removeprefix(REF)
            properties = resolve(schema).get("properties", {})
            for key, inner in value.items():
                self.seen[name, key] += 1
                if key in properties:
                    self.count(properties[key], inner)
        elif schema.get("type") == "array":
            for item in value:
                self.count(schema.get("items", {}), item)
        elif schema.get("additionalProperties"):
            for inner in value.values():
                self.count(schema["additionalProperties"], inner)
