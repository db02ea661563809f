"""Mutations of requests: of the values and the shape of a JSON body, and of its bytes."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any, cast

SCALARS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        2**31,
        2**53 + 1,
        -(2**63),
        2**64,
        10**40,
        0.5,
        1.9,
        -0.0,
        1e-9,
        1e300,
    ),
    *(float("nan"), float("inf"), -float("inf")),
    *(
        "",
        " ",
        "a",
        "3",
        "auto",
        "none",
        "required",
        "null",
        "\x00",
        "\ud800",
        "é😀\u2028",
        "a" * 3000,
        "%s%n{0}",
        "../x",
    ),
    *(
        "<|im_end|>",
        "<tool_call>",
        "</think>",
        "[INST]",
        "data: [DONE]\n\n",
        "\r\nx: y",
        "'; DROP TABLE records; --",
    ),
    *(
        "json_object",
        "user",
        "assistant",
        "system",
        "tool",
        "text",
        "function",
        "image_url",
        "input_text",
        "file",
    ),
    *(
        "data:image/png;base64,AA==",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "resp_1",
        "conv_1",
        "file-1",
    ),
    *([], {}, [[]], [{}], {"": ""}, [None], {"type": None}, {"a": {"b": [1, "2", None]}}),
)


def mutate(random: Random, body: Any, *, words: list[str]) -> Any:
    """Return a copy with one to four changes. words: field names of the dialects, so
    that some are valid.
    """
    changed = {"": copy.deepcopy(body)}
    for _ in range(random.choice((1, 1, 2, 4))):
        holder, key = random.choice(_places(changed))
        match random.randrange(8):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(random.choice(SCALARS))
            case 3 if not isinstance(holder, list) and holder is not changed:
                del holder[key]
            case 4 if isinstance(holder[key], dict):
                holder[key][random.choice(words)] = copy.deepcopy(random.choice(SCALARS))
            case 5 if isinstance(holder[key], list):
                holder[key] = holder[key] * random.choice((0, 2, 5))
            case 6:
                holder[key] = (
                    [holder[key]] if random.random() < 0.5 else {random.choice(words): holder[key]}
                )
            case _:
                other, name = random.choice(_places(changed))
                holder[key] = copy.deepcopy(other[name])
    return changed[""]


def _places(root: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return every value below `root` as its container and its key."""
    found: list[tuple[Any, Any]] = []
    rest: list[Any] = [root]
    while rest and len(found) < 400:
        holder = rest.pop()
        for key, value in _pairs(holder):
            found.append((holder, key))
            if isinstance(value, dict | list):
                rest.append(cast("Any", value))
    return found


def _pairs(holder: dict[str, Any] | list[Any]) -> list[tuple[Any, Any]]:
    return [*holder.items()] if isinstance(holder, dict) else [*enumerate(holder)]


def encode(body: Any) -> bytes:
    """Encode as JSON. NaN, infinities and lone surrogates are written too; a parser
    must reject them.
    """
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(body).encode()


def damage(random: Random, data: bytes) -> bytes:
    """Return the bytes with a part removed, repeated or replaced; sometimes bytes that
    are not JSON at all.
    """
    match random.randrange(6):
        case 0:
            return data[: random.randrange(len(data) + 1)]
        case 1:
            at = random.randrange(len(data) + 1)
            return (
                data[:at]
                + random.choice((b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"}", b",", b"\\u"))
                + data[at + 1 :]
            )
        case 2:
            return data + random.choice((b"}", b" x", b"\x00", data))
        case 3:
            depth = random.choice((100, 200, 3000))
            return b'{"x":' + b"[" * depth + b"]" * depth + b"}"
        case 4:
            return random.choice(
                (
                    b"",
                    b"null",
                    b"[]",
                    b"0",
                    b'"x"',
                    b"{",
                    b"\xef\xbb\xbf{}",
                    b"{}{}",
                    b'{"a":1,"a":2}',
                )
            )
        case _:
            return random.randbytes(random.randrange(60))
