"""The control route of `dragoman scripted --for-tests`: what the fixture's methods do,
over HTTP, for tests in other languages.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .faults import PATIENCE, RETRY_AFTER, build_faults
from .queued_reply import QueuedReply
from .scripted_server import Dragoman
from .sent_request import SentRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/dragoman/tests/"

_PARTS: Mapping[str, Callable[..., QueuedReply]] = {
    part.__name__: part
    for part in (
        QueuedReply.reply,
        QueuedReply.reasoning,
        QueuedReply.refusal,
        QueuedReply.tool_call,
        QueuedReply.error,
        QueuedReply.stall,
        QueuedReply.drop_after,
        QueuedReply.truncate_after,
        QueuedReply.malformed,
    )
}
"""What a reply may begin with."""
_METHODS: Mapping[str, Callable[..., Any]] = {
    **_PARTS,
    "when": Dragoman.when,
    "times": QueuedReply.times,
    "always": QueuedReply.always,
    "delay": QueuedReply.delay,
    "usage": QueuedReply.usage,
}


class _Reset(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST reset`.

    fault: a name of the table; the others are its seconds.
    """

    fault: str | None = None
    retry_after: float = RETRY_AFTER
    patience: float = PATIENCE


class _RaisedError(msgspec.Struct):
    name: str
    message: str = ""

    def build(self) -> Exception:
        """Build an exception of this name. An AssertionError is the test's own."""
        base = AssertionError if self.name == "AssertionError" else Exception
        kind = typing.cast("type[Exception]", type(self.name, (base,), {}))
        return kind(self.message)


class _Outcome(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST verdict`.

    error: what the client raised.
    prompt, completion: the tokens that it counted.
    """

    error: _RaisedError | None = None
    prompt: int | None = None
    completion: int | None = None


class ControlApp:
    """An ASGI application around that of a server, which it controls."""

    def __init__(self, server: Dragoman, app: ASGIApp) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request  # noqa: PLC0415 - pytest loads the plug-in
        from starlette.responses import Response  # noqa: PLC0415 - as above

        status = 200
        try:
            result = self._handle(
                f"{scope['method']} {path.removeprefix(PREFIX)}",
                await Request(scope, receive).body() or b"{}",
            )
        except (ValueError, TypeError) as error:
            status = 400
            result = {"error": str(error)}
        content = msgspec.json.encode(result, enc_hook=str)
        await Response(content, status, media_type="application/json")(scope, receive, send)

    def _handle(self, route: str, body: bytes) -> object:
        match route:
            case "POST replies":
                add_reply(self._server, msgspec.json.decode(body, type=list[dict[str, Any]]))
            case "POST reset":
                self._reset(msgspec.json.decode(body, type=_Reset))
            case "POST verdict":
                return self._judge(msgspec.json.decode(body, type=_Outcome))
            case "GET requests":
                return [_describe_request(each) for each in self._server.requests]
            case "GET http_requests":
                return [_describe_request(each) for each in self._server.http_requests]
            case "GET faults":
                return [
                    {"name": fault.name, "title": fault.title} for fault in build_faults().values()
                ]
            case _:
                raise ValueError(
                    f"{route} is none of POST replies, POST reset, POST verdict, GET requests, "
                    "GET http_requests, GET faults"
                )
        return {}

    def _reset(self, options: _Reset) -> None:
        table = build_faults(retry_after=options.retry_after, patience=options.patience)
        if options.fault is not None and options.fault not in table:
            raise ValueError(f"fault: {options.fault!r} is none of {', '.join(table)}")
        self._server.reset(None if options.fault is None else table[options.fault])

    def _judge(self, outcome: _Outcome) -> object:
        error = None if outcome.error is None else outcome.error.build()
        if error is None:
            try:
                self._server.assert_usage(prompt=outcome.prompt, completion=outcome.completion)
            except AssertionError as mismatch:
                error = mismatch
        findings = self._server.judge(error)
        return {"outcome": self._server.describe(findings, error), "findings": findings}


def add_reply(server: Dragoman, steps: Sequence[Mapping[str, object]]) -> None:
    """Queue one reply.

    Args:
        server: where.
        steps: each is a method and its argument, or an object of its arguments, such
            as `{"reply": "Hello"}` and `{"error": {"status": 429, "retry_after": 1}}`.

    Raises:
        ValueError: a step is invalid; nothing was queued.
    """
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for step in steps:
        if len(step) != 1 or not step.keys() <= _METHODS.keys():
            raise ValueError(
                f"{dict(step)}: a step is an object with one of the keys {', '.join(_METHODS)}"
            )
        ((name, value),) = step.items()
        calls.append((name, *_bind(name, value)))
    names = [name for name, *_ in calls]
    parts = names[1:] if names[:1] == ["when"] else names
    if not parts or parts[0] not in _PARTS or "when" in parts:
        raise ValueError(f"a reply is `when`, if any, and then begins with {', '.join(_PARTS)}")
    target: object = server
    for name, positional, named in calls:
        target = _METHODS[name](target, *positional, **named)


def _bind(name: str, value: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Check the arguments of a step against the method's signature."""
    hints = typing.get_type_hints(_METHODS[name])
    _, *parameters = inspect.signature(_METHODS[name]).parameters.values()
    named: dict[str, Any]
    if value is None or value is True:
        named = {}
    elif isinstance(value, dict):
        named = typing.cast("dict[str, Any]", value)
    else:
        named = {parameters[0].name: value} if parameters else {}
    allowed = {parameter.name: parameter for parameter in parameters}
    if unknown := named.keys() - allowed.keys():
        raise ValueError(
            f"{name}: unknown {', '.join(sorted(unknown))}; it has {', '.join(allowed) or 'none'}"
        )
    positional: tuple[Any, ...] = ()
    converted: dict[str, Any] = {}
    for parameter in parameters:
        is_repeated = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.name not in named:
            if parameter.default is parameter.empty and not is_repeated:
                raise ValueError(f"{name}: {parameter.name} is missing")
            continue
        given = named[parameter.name]
        if is_repeated and isinstance(given, str):
            given = [given]
        kind = tuple[hints[parameter.name], ...] if is_repeated else hints[parameter.name]
        try:
            result = msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {parameter.name}: {error}") from None
        if is_repeated:
            positional = result
        else:
            converted[parameter.name] = result
    return positional, converted


def _describe_request(request: SentRequest) -> dict[str, object]:
    try:
        body = request.json
    except ValueError:
        body = None
    return {
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
        "json": body,
        "model": request.model,
        "text": request.text,
        "system": request.system,
        "messages": request.messages,
        "tools": request.tools,
        "tool_results": request.tool_results,
        "status": request.status,
        "ending": request.ending,
        "tool_calls": request.tool_calls,
        "usage": request.usage,
        "arrived_at": request.arrived_at,
        "answered_at": request.answered_at,
    }
