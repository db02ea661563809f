"""Checks of the errors of every API that generates text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from ..dialects import DIALECTS, Dialect
from ..error_bodies import check_error_basics
from ..rules.json_values import require
from ..session import Json, Level, Session, get_object
from .generation import AREAS, ONE_MODEL, on_every_dialect

Broken = Callable[[Dialect, str], object]
"""Builds an invalid request body for a dialect and a model: bytes, or a value to encode
as JSON.
"""


def _change(**fields: Any) -> Broken:
    return lambda d, model: {**d.ask(model, "Hello", 16), **fields}


def _change_prompt(value: Any) -> Broken:
    return lambda d, model: {**d.ask(model, "Hello", 16), d.prompt: value}


def _change_limit(value: Any) -> Broken:
    return lambda d, model: (
        d.ask(model, "Hello", 16, options={d.limit: value})
        if d.is_ollama
        else {**d.ask(model, "Hello", 16), d.limit: value}
    )


def _drop_prompt(d: Dialect, model: str) -> Json:
    return {key: value for key, value in d.ask(model, "Hello", 16).items() if key != d.prompt}


def _write_raw(text: bytes) -> Broken:
    return lambda _d, _m: text


def _insert_raw(text: bytes) -> Broken:
    """Build a body whose prompt consists of these bytes."""

    def build(d: Dialect, model: str) -> bytes:
        return json.dumps(d.ask(model, "PLACE", 16)).encode().replace(b"PLACE", text)

    return build


SURELY_WRONG = (400, 404, 413, 415, 422)
"""Statuses that reject an invalid request."""


INVALID: tuple[tuple[str, str, Broken, Callable[[Dialect], bool], Level], ...] = (
    (
        "unknown-model",
        "An unknown model is an error of the client.",
        _change(model="no-such-model"),
        lambda _: True,
        "must",
    ),
    (
        "bad-json",
        "A body that is not JSON is an error of the client.",
        _write_raw(b'{"model": '),
        lambda _: True,
        "must",
    ),
    (
        "empty-body",
        "An empty body is an error of the client.",
        _write_raw(b""),
        lambda _: True,
        "must",
    ),
    (
        "array-body",
        "A body that is an array is an error of the client.",
        _write_raw(b"[1]"),
        lambda _: True,
        "must",
    ),
    (
        "not-utf8",
        "A body that is not UTF-8 is an error of the client.",
        _insert_raw(b"\xff\xfe"),
        lambda _: True,
        "must",
    ),
    (
        "deep-json",
        "A body that is nested 10,000 levels deep is an error of the client.",
        _write_raw(b"[" * 10_000 + b"]" * 10_000),
        lambda _: True,
        "must",
    ),
    (
        "no-prompt",
        "A request without a prompt is rejected.",
        _drop_prompt,
        lambda d: d.name not in ("responses", "ollama-generate", "ollama-chat", "completions"),
        "must",
    ),
    (
        "prompt-of-wrong-type",
        "A prompt that is an object of no kind is rejected.",
        _change_prompt({"a": 1}),
        lambda _: True,
        "must",
    ),
    (
        "empty-messages",
        "An empty list of messages is rejected.",
        _change_prompt([]),
        lambda d: d.name in ("chat", "messages"),
        "must",
    ),
    (
        "message-without-role",
        "A message without a role is rejected.",
        _change_prompt([{"content": "Hello"}]),
        lambda d: d.name in ("chat", "messages", "ollama-chat"),
        "must",
    ),
    (
        "unknown-role",
        "A message of an unknown role is rejected.",
        _change_prompt([{"role": "wizard", "content": "Hello"}]),
        lambda d: d.name in ("chat", "messages", "responses"),
        "should",
    ),
    (
        "content-of-wrong-type",
        "A message whose content is a number is rejected.",
        _change_prompt([{"role": "user", "content": 7}]),
        lambda d: d.is_chat,
        "must",
    ),
    (
        "negative-limit",
        "A negative limit of tokens is rejected.",
        _change_limit(-5),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "limit-of-wrong-type",
        "A limit of tokens that is a word is rejected.",
        _change_limit("many"),
        lambda _: True,
        "must",
    ),
    (
        "negative-temperature",
        "A negative temperature is rejected.",
        _change(temperature=-1),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "temperature-of-wrong-type",
        "A temperature that is a word is rejected.",
        _change(temperature="hot"),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "top-p-above-one",
        "A top_p above 1 is rejected.",
        _change(top_p=1.5),
        lambda d: not d.is_ollama,
        "must",
    ),
    (
        "stream-of-wrong-type",
        "A `stream` that is a word is rejected.",
        _change(stream="perhaps"),
        lambda _: True,
        "should",
    ),
)


async def _check_invalid(d: Dialect, build: Broken, s: Session) -> None:
    body = build(d, s.model)
    exchange = await (
        s.post(d.path, None, raw=body) if isinstance(body, bytes) else s.post(d.path, body)
    )
    require(exchange.status in SURELY_WRONG, f"status {exchange.status}: {exchange.body[:200]!r}")
    check_error_basics(exchange.json())


for _d in DIALECTS:
    for _name, _rule, _body, _only, _level in INVALID:
        if _only(_d):
            _except_for = ONE_MODEL if _name == "unknown-model" else ()
            _run = partial(_check_invalid, _d, _body)
            AREAS[_d.name].add(f"error-{_name}", _rule, _run, level=_level, except_for=_except_for)


@on_every_dialect("An error has every field of the API's own error body.")
async def error_form(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, _change_limit("many")(d, s.model))
    require(exchange.status in SURELY_WRONG, f"status {exchange.status}")
    d.check_error(exchange.json())
    # OpenAI's codes are words; a server that uses a number must use the response's
    # status.
    code = get_object(exchange.json(), "error").get("code")
    require(
        not isinstance(code, int) or code == exchange.status,
        f"status {exchange.status}, its code is {code}",
    )


@on_every_dialect("An invalid request for a stream is a status and an error body, not a stream.")
async def error_before_stream(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, {**d.ask_stream(s.model, "Hello", 16), d.prompt: {"a": 1}})
    require(exchange.status in SURELY_WRONG, f"status {exchange.status}")
    require(
        exchange.content_type == "application/json", f"Content-Type is {exchange.content_type!r}"
    )
    check_error_basics(exchange.json())


@on_every_dialect("A lone surrogate in a string is not a failure of the server.")
async def error_surrogate(s: Session, d: Dialect) -> None:
    # A lone surrogate is valid JSON but not encodable as UTF-8: it fails after parsing,
    # when the text is encoded.
    body = _insert_raw(b"\\ud8fe")(d, s.model)
    assert isinstance(body, bytes)
    exchange = await s.post(d.path, None, raw=body)
    require(exchange.status < 500, f"status {exchange.status}: {exchange.message()}")


@on_every_dialect("The error of an invalid field names the field.", level="should")
async def error_names_field(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, _change_limit("many")(d, s.model))
    require(d.limit.encode() in exchange.body, f"{d.limit} is not in {exchange.body[:300]!r}")


@on_every_dialect(
    "The error of an unknown model is a 404 that names it.", level="should", except_for=ONE_MODEL
)
async def error_names_model(s: Session, d: Dialect) -> None:
    exchange = await s.post(d.path, d.ask("no-such-model", "Hello", 16))
    require(exchange.status == 404, f"status {exchange.status}")
    require(b"no-such-model" in exchange.body, f"the error is {exchange.message()!r}")


@on_every_dialect("Another method than POST is a 405 (or 404), with the API's own error body.")
async def error_method(s: Session, d: Dialect) -> None:
    exchange = await s.send("PUT", d.path, d.ask(s.model, "Hello", 16))
    require(exchange.status in (404, 405), f"status {exchange.status}")
    check_error_basics(exchange.json())


@on_every_dialect("An error body is small, however large the rejected body is.")
async def error_size(s: Session, d: Dialect) -> None:
    # A validator that lists every error, or echoes its input, would answer with
    # megabytes.
    items: list[Json] = [{"role": 1, "content": {"x": [1, 2]}}] * 2000
    exchange = await s.post(d.path, {**d.ask(s.model, "Hello", 16), d.prompt: items})
    require(400 <= exchange.status < 500, f"status {exchange.status}")
    require(len(exchange.body) < 20_000, f"the error has {len(exchange.body)} bytes")


@on_every_dialect("A failure does not show a traceback, a file's path or a library's internals.")
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
        require(not leaked, f"the error has {leaked}: {exchange.body[:300]!r}")


@on_every_dialect("An error is followed by a right answer: it has broken nothing.")
async def error_recovery(s: Session, d: Dialect) -> None:
    await s.post(d.path, _change_prompt({"a": 1})(d, s.model))
    await s.ask(d.path, d.ask(s.model, "Name a colour.", 16))
