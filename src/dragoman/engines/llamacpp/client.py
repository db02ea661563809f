"""An HTTP client of llama.cpp's server over its Unix socket. Independent of sequences."""

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
    """Every request has its own connection: closing it cancels the request."""

    def __init__(self, socket: str, key: str) -> None:
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=socket, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            ),
            base_url="http://llama.cpp",
            headers={"Authorization": f"Bearer {key}", "Connection": "close", "Content-Type": "application/json"},
            # No timeout for slow models: a process that dies closes the socket.
            timeout=None,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def complete(self, body: CompletionBody) -> AsyncGenerator[CompletionChunk]:
        """Request a completion: yields the events of a stream, or the single non-streamed one. Raises EngineError."""
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
        """Compute the pooled output of each input; NaN for non-finite numbers.

        Raises: EngineError.
        """
        # -1: as pooled, not normalized.
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
        """Tokenize a part of a prompt, with control tokens. Raises EngineError."""
        try:
            response = await self._client.post(
                "/tokenize", content=_encode_tokenize_body(text, add_special=False, parse_special=True)
            )
            return msgspec.json.decode(response.content, type=TokenizeResponse).tokens
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise EngineError(_CONNECTION_LOST) from error


def complete(socket: str, key: str, body: CompletionBody) -> tuple[int, ...]:
    """Return the tokens of a non-streamed completion; none if llama.cpp refuses it. Blocking."""
    return decode_chunk(_post(socket, key, "/completion", _encode(body)).content).tokens


def tokenize(socket: str, key: str, text: str, *, add_special: bool = False) -> tuple[int, ...]:
    """Tokenize a text without parsing names of control tokens. Blocking.

    add_special: add the vocabulary's BOS and EOS tokens.
    """
    response = _post(
        socket, key, "/tokenize", _encode_tokenize_body(text, add_special=add_special, parse_special=False)
    )
    return msgspec.json.decode(response.content, type=TokenizeResponse).tokens


def count_tokens(socket: str, key: str, part: Mapping[str, object]) -> int:
    """Count the tokens of a conversation with only this message part. Blocking.

    Raises: RequestError with llama.cpp's reason if it rejects the part, EngineError if it does not respond.
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
