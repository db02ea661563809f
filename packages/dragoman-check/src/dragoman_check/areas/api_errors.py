"""Checks of the errors of every API that generates text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from ..check_catalog import Level
from ..dialects import DIALECTS, Dialect
from ..error_bodies import check_error_basics
from ..json_objects import get_object
from ..rules.json_values import JsonObject, require
from ..session import Session
from .generation import AREAS, ONE_MODEL, on_every_dialect

InvalidBody = Callable[[Dialect, str], object]
"""Builds an invalid request body for a dialect and a model: bytes, or a value to encode
as JSON.
"""


def _change(**fields: Any) -> InvalidBody:
    return lambda d, model: {**d.build_request(model, "Hello", 16), **fields}


def _change_prompt(value: Any) -> InvalidBody:
    return lambda d, model: {**d.build_request(model, "Hello", 16), d.prompt: value}


def _change_limit(value: Any) -> InvalidBody:
    return lambda d, model: (
        d.build_request(model, "Hello", 16, options={d.limit: value})
        if d.is_ollama
        else {**d.build_request(model, "Hello", 16), d.limit: value}
    )


def _drop_prompt(d: Dialect, model: str) -> JsonObject:
    return {
        key: value for key, value in d.build_request(model, "Hello", 16).items() if key != d.prompt
    }


def _write_raw(text: bytes) -> InvalidBody:
    return lambda _d, _m: text


def _insert_raw(text: bytes) -> InvalidBody:
    """Build a body whose prompt consists of these bytes."""

    def build(d: Dialect, model: str) -> bytes:
        return json.dumps(d.build_request(model, "PLACE", 16)).encode().replace(b"PLACE", text)

    return build


REJECTIONS = (400, 404, 413, 415, 422)
"""Statuses that reject an invalid request."""
INVALID: tuple[tuple[str, str, InvalidBody, Callable[[Dialect], bool], Level], ...] = (
    (
        "unknown-model",
        "A request for an unknown model is rejected with a 4xx status.",
        _change(model="no-such-model"),
        lambda _: True,
        "must",
    ),
    (
        "bad-json",
        "A body that is not valid JSON is rejected with a 4xx status.",
        _write_raw(b'{"model": '),
        lambda _: True,
        "must",
    ),
    (
        "empty-body",
        "An empty body is rejected with a 4xx status.",
        _write_raw(b""),
        lambda _: True,
        "must",
    ),
    (
        "array-body",
        "A body that is a JSON array is rejected with a 4xx status.",
        _write_raw(b"[1]"),
        lambda _: True,
        "must",
    ),
    (
        "not-utf8",
        "A body that is not valid UTF-8 is rejected with a 4xx status.",
        _insert_raw(b"\xff\xfe"),
        lambda _: True,
        "must",
    ),
    (
        "deep-json",
        "A JSON body with 10,000 levels of nesting is rejected with a 4xx status.",
        _write_raw(b"[" * 10_000 + b"]" * 10_000),
        lambda _: True,
        "must",
    ),
    (
        "no-prompt",
        "A request without a prompt is rejected with a 4xx status.",
        _drop_prompt,
        lambda d: d.name not in ("responses", "ollama-generate", "ollama-chat", "completions"),
        "must",
    ),
    (
        "prompt-of-wrong-type",
        "A prompt of an invalid type is rejected with a 4xx status.",
        _change_prompt({"a": 1}),
        lambda _: True,
        "must",
    ),
    (
        "empty-messages",
        "An empty list of messages is rejected with a 4xx status.",
        _change_prompt([]),
        lambda d: d.name in ("chat", "messages"),
        "must",
    ),
    (
        "message-without-role",
        "A message without a role is rejected with a 4xx status.",
        _change_prompt([{"content": "Hello"}]),
        lambda d: d.name in ("chat", "messages", "ollama-chat"),
        "must",
    ),
    (
        "unknown-role",
        "A message with an unknown role is rejected with a 4xx status.",
        _change_prompt([{"role": "wizard", "content": "Hello"}]),
        lambda d: d.name in ("chat", "messages", "responses"),
        "should",
    ),
    (
        "content-of-wrong-type",
        "A message with a number as its content is rejected with a 4xx status.",
        _change_prompt([{"role": "user", "content": 7}]),
        lambda d: d.is_chat,
        "must",
    ),
    (
        "negative-limit",
        "A negative output token limit is rejected with a 4xx status.",
        _change_limit(-5),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "limit-of-wrong-type",
        "An output token limit that is not a number is rejected with a 4xx status.",
        _change_limit("many"),
        lambda _: True,
        "must",
    ),
    (
        "negative-temperature",
        "A negative `temperature` is rejected with a 4xx status.",
        _change(temperature=-1),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "temperature-of-wrong-type",
        "A `temperature` that is not a number is rejected with a 4xx status.",
        _change(temperature="hot"),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "top-p-above-one",
        "A `top_p` above 1 is rejected with a 4xx status.",
        _change(top_p=1.5),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "stream-of-wrong-type",
        "A `stream` that is not a boolean is rejected with a 4xx status.",
        _change(stream="perhaps"),
        lambda _: True,
        "should",
    ),
)


async def _check_invalid(d: Dialect, build: InvalidBody, s: Session) -> None:
    body = build(d, s.model)
    exchange = await (
        s.post(d.path, None, raw=body) if isinstance(body, bytes) else s.post(d.path, body)
    )
    require(exchange.status in REJECTIONS, f"status {exchange.status}: {exchange.body[:200]!r}")
    check_error_basics(exchange.json())


for _d in DIALECTS:
    for _name, _rule, _body, _only, _level in INVALID:
        if _only(_d):
            _except_for = ONE_MODEL if _name == "unknown-model" else ()
            _run = partial(_check_invalid, _d, _body)
            AREAS[_d.name].add(f"error-{_name}", _rule, _run, level=_level, except_for=_except_for)


@on_every_dialect("An error body has all fields of the API's error format.")
async def error_form(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, _change_limit("many")(d, s.model))
    require(exchange.status in REJECTIONS, f"status {exchange.status}")
    d.check_error(exchange.json())
    # OpenAI's codes are strings; a server that uses a number must use the status.
    code = get_object(exchange.json(), "error").get("code")
    require(
        not isinstance(code, int) or code == exchange.status,
        f"status {exchange.status}, but error.code is {code}",
    )


@on_every_dialect(
    "An invalid request with `stream: true` is rejected with a 4xx status and a JSON "
    "error body, not with a stream."
)
async def error_before_stream(s: Session, d: Dialect) -> None:
    exchange = await s.post(
        d.path, {**d.build_stream_request(s.model, "Hello", 16), d.prompt: {"a": 1}}
    )
    require(exchange.status in REJECTIONS, f"status {exchange.status}")
    require(
        exchange.content_type == "application/json", f"Content-Type is {exchange.content_type!r}"
    )
    check_error_basics(exchange.json())


@on_every_dialect("A lone surrogate in a string does not cause a 5xx status.")
async def error_surrogate(s: Session, d: Dialect) -> None:
    # A lone surrogate is valid JSON but not encodable as UTF-8: encoding the text fails
    # after parsing succeeded.
    body = _insert_raw(b"\\ud8fe")(d, s.model)
    assert isinstance(body, bytes)
    exchange = await s.post(d.path, None, raw=body)
    require(exchange.status < 500, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect("The error for an invalid field names the field.", level="should")
async def error_names_field(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, _change_limit("many")(d, s.model))
    require(
        d.limit.encode() in exchange.body,
        f"the error does not contain {d.limit}: {exchange.body[:300]!r}",
    )


@on_every_dialect(
    "The error for an unknown model has status 404, and names the model.",
    level="should",
    except_for=ONE_MODEL,
)
async def error_names_model(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, d.build_request("no-such-model", "Hello", 16))
    require(exchange.status == 404, f"status {exchange.status}")
    require(b"no-such-model" in exchange.body, f"the error is {exchange.message()!r}")


@on_every_dialect("A method other than POST returns 405, 404 or 501, with an error body.")
async def error_method(s: Session, d: Dialect) -> None:
    exchange = await s.send("PUT", d.path, d.build_request(s.model, "Hello", 16))
    # 501: the server has no resource with this method (RFC 9110, 15.6.2).
    require(exchange.status in (404, 405, 501), f"status {exchange.status}")
    check_error_basics(exchange.json())


@on_every_dialect("An error body is smaller than 20 kB, whatever the size of the request.")
async def error_size(s: Session, d: Dialect) -> None:
    # A validator that lists every error, or echoes its input, would return megabytes.
    items: list[JsonObject] = [{"role": 1, "content": {"x": [1, 2]}}] * 2000
    exchange = await s.post(d.path, {**d.build_request(s.model, "Hello", 16), d.prompt: items})
    require(400 <= exchange.status < 500, f"status {exchange.status}")
    require(len(exchange.body) < 20_000, f"the error body has {len(exchange.body)} bytes")


@on_every_dialect("An error body contains no traceback, file path or library internals.")
async def error_leaks_nothing(s: Session, d: Dialect) -> None:
    bodies: tuple[object, ...] = (
        _change_prompt({"a": 1})(d, s.model),
        _change_limit("many")(d, s.model),
        {},
    )
    for body in bodies:
        exchange = await s.post(d.path, body)
        marks = (b"Traceback", b'File "/', b".py\\", b"site-packages", b"pydantic.dev", b"0x7f")
        leaked = [mark for mark in marks if mark in exchange.body]
        require(not leaked, f"the error contains {leaked}: {exchange.body[:300]!r}")


@on_every_dialect("A valid request succeeds after an invalid one.")
async def error_recovery(s: Session, d: Dialect) -> None:
    await s.post(d.path, _change_prompt({"a": 1})(d, s.model))
    await s.request(d.path, d.build_request(s.model, "Name a colour.", 16))
