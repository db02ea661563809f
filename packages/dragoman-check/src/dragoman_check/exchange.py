"""A request and its response: the evidence of a verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from .rules.json_values import JsonObject, Violation, require_object


@dataclass(slots=True)
class Exchange:
    """A request and its response.

    request: body of the request; the whole request on a raw connection.
    status: 0 if there is no response.
    headers: headers of the response, names in lower case.
    body: body of the response; everything received on a raw connection.
    seconds: from the request to the end of the response.
    """

    method: str
    path: str
    request: bytes
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    body: bytes = b""
    seconds: float = 0.0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def content_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def json(self) -> JsonObject:
        """Parse the body as a JSON object. Raises Violation."""
        try:
            value: object = json.loads(self.body, parse_constant=_reject_constant)
        except ValueError as error:
            raise Violation(f"the body is not JSON: {error}: {self.body[:80]!r}") from None
        return require_object(value, "the body")

    def message(self) -> str:
        """Return the error message of the body, in any common envelope."""
        try:
            error: Any = json.loads(self.body)
        except ValueError:
            return self.body[:200].decode(errors="replace")
        # Envelopes nest: {"error": {"message": …}}, {"error": "…"}, FastAPI's
        # {"detail": …}.
        while isinstance(error, dict):
            values = cast(JsonObject, error)
            error = values.get("error", values.get("message", values.get("detail", str(values))))
        return str(error)[:300]


def _reject_constant(name: str) -> float:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not JSON")
