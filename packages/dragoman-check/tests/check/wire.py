"""Defects that a proxy plants in a server: edits of its requests and responses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dragoman_check.rules.json_values import JsonObject


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        """The body; empty if it is not an object."""
        try:
            value: object = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}  # pyright: ignore


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    @property
    def is_stream(self) -> bool:
        kind = self.headers.get("content-type", "")
        return kind.startswith(("text/event-stream", "application/x-ndjson"))


EditRequest = Callable[[Request], Response | None]
"""Changes a request in place, or returns a response instead of the server."""
EditResponse = Callable[[Request, Response], None]
"""Changes a response in place."""


def forward_request(_: Request) -> Response | None:
    return None


def keep_response(_request: Request, _response: Response) -> None:
    return None


@dataclass(frozen=True)
class Defect:
    """One planted defect.

    origin: the server or the report that it is modeled on.
    paths: regular expression of the paths that it applies to.
    only: regular expression of the checks to run: a subset, so that its failures are
        due to the defect.
    edit_request: changes the request in place, or returns a response itself.
    edit_response: changes the response in place.
    model: the reference engine; `sim` enforces tools and schemas, computes embeddings,
        and is fast.
    edit_bytes: changes the bytes that a client sends.
    """

    name: str
    origin: str
    paths: str
    only: str
    edit_request: EditRequest = forward_request
    edit_response: EditResponse = keep_response
    edit_bytes: Callable[[bytes], bytes] | None = None
    ignores_disconnect: bool = False
    mixes_streams: bool = False
    methods: tuple[str, ...] = ()
    profile: str = "auto"
    model: str = "sim"

    def applies(self, method: str, path: str) -> bool:
        return re.search(self.paths, path) is not None and (
            not self.methods or method in self.methods
        )


ObjectChange = Callable[[JsonObject], object]
"""Changes an object in place."""


def list_objects(value: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects in the list of this name; empty if there is none."""
    items: Any = value.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []  # pyright: ignore


def change_body(change: ObjectChange) -> EditRequest:
    """Change the body of a request, if it is an object."""

    def edit(request: Request) -> None:
        body = request.json
        if body:
            change(body)
            request.body = json.dumps(body).encode()

    return edit


def ignore_fields(*names: str) -> EditRequest:
    """Ignore fields of a request."""

    def change(body: JsonObject) -> None:
        for name in names:
            body.pop(name, None)
            if isinstance(body.get("options"), dict):
                body["options"].pop(name, None)

    return change_body(change)


def reject(
    when: Callable[[JsonObject], object], status: int = 400, body: object = None
) -> EditRequest:
    """Reject requests whose body meets the condition."""
    envelope = body or {
        "error": {
            "message": "not supported",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }

    def edit(request: Request) -> Response | None:
        return build_json(status, envelope) if request.json and when(request.json) else None

    return edit


def reject_bytes(pattern: bytes, status: int = 400, body: object = None) -> EditRequest:
    """Reject requests whose body contains these bytes."""
    envelope = body or {
        "error": {
            "message": "not supported",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }

    def edit(request: Request) -> Response | None:
        return build_json(status, envelope) if re.search(pattern, request.body) else None

    return edit


def build_json(status: int, body: object) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(body).encode())


def edit_json(change: ObjectChange) -> EditResponse:
    """Change the body of a successful response that is not a stream."""

    def edit(_: Request, response: Response) -> None:
        if response.status == 200 and not response.is_stream:
            value = json.loads(response.body)
            change(value)
            response.body = json.dumps(value).encode()

    return edit


def edit_errors(change: Callable[[Request, Response], None]) -> EditResponse:
    def edit(request: Request, response: Response) -> None:
        if response.status >= 400:
            change(request, response)

    return edit


Event = tuple[str | None, Any]
"""An event's name, and its data: an object or the text [DONE]."""


def edit_events(change: Callable[[list[Event]], list[Event]]) -> EditResponse:
    """Change the events of a stream."""

    def edit(_: Request, response: Response) -> None:
        if response.is_stream:
            response.body = write_events(change(read_events(response.body)))

    return edit


def edit_each_event(change: ObjectChange) -> EditResponse:
    """Change each object of a stream in place."""

    def edit(events: list[Event]) -> list[Event]:
        for _, value in events:
            if isinstance(value, dict):
                change(value)  # pyright: ignore
        return events

    return edit_events(edit)


def read_events(body: bytes) -> list[Event]:
    events: list[Event] = []
    for block in body.decode().split("\n\n"):
        name: str | None = None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append((name, data if data == "[DONE]" else json.loads(data)))
    return events


def write_events(events: list[Event]) -> bytes:
    blocks = [
        ("" if name is None else f"event: {name}\n")
        + f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n"
        for name, value in events
    ]
    return "".join(blocks).encode()


def edit_lines(change: Callable[[list[JsonObject]], list[JsonObject]]) -> EditResponse:
    """Change the lines of one of Ollama's streams."""

    def edit(_: Request, response: Response) -> None:
        if response.is_stream:
            lines: list[JsonObject] = [
                json.loads(line) for line in response.body.decode().splitlines() if line.strip()
            ]
            response.body = "".join(json.dumps(line) + "\n" for line in change(lines)).encode()

    return edit


def get_deltas(chunk: JsonObject) -> list[JsonObject]:
    return [choice["delta"] for choice in chunk.get("choices", ()) if "delta" in choice]


def get_call_deltas(chunk: JsonObject) -> list[JsonObject]:
    return [call for delta in get_deltas(chunk) for call in delta.get("tool_calls", ())]
