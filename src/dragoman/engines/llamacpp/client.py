"""Asks llama.cpp's server, over its socket. Knows its routes and nothing of sequences."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from math import nan

import httpx2
import msgspec
import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineError, RequestError
from .wire import CompletionBody, CompletionChunk, EmbeddingItem, InputTokensResponse, TokenizeResponse, decode_chunk

_encode = msgspec.json.Encoder().encode
_CONNECTION_LOST = "The connection to llama.cpp was lost."


class LlamaCppClient:
    """Every question has a connection of its own: closing it is how an answer is given up."""

    def __init__(self, socket: str, key: str) -> None:
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=socket, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            ),
            base_url="http://llama.cpp",
            headers={"Authorization": f"Bearer {key}", "Connection": "close", "Content-Type": "application/json"},
            # However long a model thinks: a process that has died closes the socket.
            timeout=None,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def complete(self, body: CompletionBody) -> AsyncGenerator[CompletionChunk]:
        """Events of a stream, or the one of a whole completion. Raises EngineError."""
        try:
            async with self._client.stream("POST", "/completion", content=_encode(body)) as response:
                if response.status_code != 200 or not body.stream:
                    yield decode_chunk(await response.aread())
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield decode_chunk(line[6:])
        except httpx2.HTTPError as error:
            raise EngineError(_CONNECTION_LOST) from error
        except msgspec.DecodeError as error:
            raise EngineError(f"llama.cpp sent an unexpected message: {error}") from error

    async def embed(self, inputs: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """What the model makes of each input, as it comes out of its pooling; NaN where it gives no number.

        Raises EngineError.
        """
        body = _encode({"input": inputs, "embd_normalize": -1})
        try:
            response = await self._client.post("/embeddings", content=body)
        except httpx2.HTTPError as error:
            raise EngineError(_CONNECTION_LOST) from error
        if response.status_code != 200:
            failure = decode_chunk(response.content).error
            raise EngineError(f"llama.cpp: {'it refused' if failure is None else failure.message}")
        embedded = sorted(msgspec.json.decode(response.content, type=list[EmbeddingItem]), key=lambda item: item.index)
        return [
            np.array([nan if value is None else value for value in item.embedding[0]], np.float32) for item in embedded
        ]

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """What llama.cpp makes of a part of a prompt, with its control tokens. Raises EngineError."""
        try:
            response = await self._client.post(
                "/tokenize", content=_encode_tokenize_body(text, add_special=False, parse_special=True)
            )
            return msgspec.json.decode(response.content, type=TokenizeResponse).tokens
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise EngineError(_CONNECTION_LOST) from error


def tokenize(socket: str, key: str, text: str, *, add_special: bool = False) -> tuple[int, ...]:
    """Blocking: what llama.cpp makes of a text in which names of control tokens are text.

    add: with what the vocabulary puts around one that is no part of another.
    """
    response = _post(
        socket, key, "/tokenize", _encode_tokenize_body(text, add_special=add_special, parse_special=False)
    )
    return msgspec.json.decode(response.content, type=TokenizeResponse).tokens


def count_tokens(socket: str, key: str, part: Mapping[str, object]) -> int:
    """Blocking: tokens of a conversation with this part of a message and nothing else.

    Raises RequestError with llama.cpp's reason where it refuses the part, EngineError where it does not answer.
    """
    body = _encode({"messages": [{"role": "user", "content": [part]}]})
    try:
        response = _post(socket, key, "/chat/completions/input_tokens", body)
        if response.status_code == 200:
            return msgspec.json.decode(response.content, type=InputTokensResponse).input_tokens
        failure = decode_chunk(response.content).error
    except (httpx2.HTTPError, msgspec.DecodeError) as error:
        raise EngineError(_CONNECTION_LOST) from error
    raise RequestError("it is refused" if failure is None else failure.message)


def _encode_tokenize_body(text: str, *, add_special: bool, parse_special: bool) -> bytes:
    return _encode({"content": text, "add_special": add_special, "parse_special": parse_special})


def _post(socket: str, key: str, path: str, body: bytes) -> httpx2.Response:
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket), timeout=60) as client:
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        return client.post(f"http://llama.cpp{path}", headers=headers, content=body)
