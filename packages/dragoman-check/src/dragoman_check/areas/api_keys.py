"""Checks of API keys."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from ..check_catalog import Area
from ..rules.json_values import require
from ..session import Session

KEYS = Area(
    "keys", claims=("key",), source="https://platform.openai.com/docs/api-reference/authentication"
)


def add_keys() -> None:
    def build(path: str, key: str | None) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            headers = () if key is None else (f"Authorization: Bearer {key}",)
            netloc = urlsplit(s.target.url).netloc
            body = b"{}"
            lines = (
                f"POST {path} HTTP/1.1",
                f"Host: {netloc}",
                "Content-Type: application/json",
                *headers,
            )
            head = "".join(
                f"{line}\r\n"
                for line in (*lines, f"Content-Length: {len(body)}", "Connection: close")
            )
            exchange = await s.send_bytes(head.encode() + b"\r\n" + body)
            require(exchange.status == 401, f"status {exchange.status}")
            error_body = json.loads(exchange.body.partition(b"\r\n\r\n")[2])
            require(error_body.get("error"), f"the body is {error_body}")

        return run

    paths = (
        ("chat", "/v1/chat/completions"),
        ("responses", "/v1/responses"),
        ("messages", "/v1/messages"),
        ("embeddings", "/v1/embeddings"),
    )
    for name, path in paths:
        KEYS.add(
            f"no-key-{name}",
            f"`{path}` without a key returns 401.",
            build(path, None),
            claims=(name,),
        )
        KEYS.add(
            f"wrong-key-{name}",
            f"`{path}` with an invalid key returns 401.",
            build(path, "wrong"),
            claims=(name,),
        )


add_keys()


@KEYS.check(
    "`/v1/messages` accepts the key as `x-api-key` and as a bearer token.", claims=("messages",)
)
async def both_headers(s: Session) -> None:
    from ..dialects import MESSAGES  # noqa: PLC0415

    body = MESSAGES.build_request(s.model, "Hi", 16)
    key = s.target.api_key or ""
    for headers in (
        {"authorization": "", "x-api-key": key},
        {"authorization": f"Bearer {key}", "x-api-key": ""},
    ):
        exchange = await s.post(
            MESSAGES.path, body, headers={k: v for k, v in headers.items() if v}
        )
        require(exchange.status == 200, f"{sorted(headers)}: status {exchange.status}")
