"""Administration of upstreams by vLLM's routes: pause, sleep, prefix cache, adapters. Each call goes to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from ...core.control import PauseMode
from ...core.errors import NotFound
from ...http_client import ClientTimeouts, HttpClient, HttpClientError
from .discovery import build_auth_headers
from .errors import MAX_ERROR_BODY, build_transport_error, parse_error
from .pool import Upstream

T = TypeVar("T")

_NO_ROUTE = frozenset({"Not Found", "Method Not Allowed"})
"""What FastAPI says of a route that does not exist."""


class _Aborted(Struct):
    aborted: int = 0


class _CacheReset(Struct):
    success: bool = True


class UpstreamControl:
    """As `core.control.EngineControl`, and `PrefixCache` and `AdapterLoader` of `core.engine`.

    Its state is what was set here: an upstream that others pause or put to sleep is not asked.
    """

    def __init__(self, upstreams: Sequence[Upstream], timeouts: ClientTimeouts) -> None:
        self._upstreams, self._timeouts = upstreams, timeouts
        self._is_paused = False
        self._sleep_level = 0

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def sleep_level(self) -> int:
        return self._sleep_level

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        await self._post("/pause", query={"mode": mode, "clear_cache": str(clear_cache).lower()})
        self._is_paused = True

    async def resume(self) -> None:
        await self._post("/resume")
        self._is_paused = False

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        await self._post("/sleep", query={"level": str(level), "mode": mode})
        self._is_paused, self._sleep_level = True, level

    async def wake_up(self) -> None:
        await self._post("/wake_up")
        self._is_paused, self._sleep_level = False, 0

    async def abort_all(self) -> int:
        return sum(_decode(body, _Aborted).aborted for body in await self._post("/abort_requests"))

    def cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int | None:  # noqa: ARG002 - of the protocol
        """As `PrefixCache`: not known."""
        return None

    async def reset_prefix_cache(self) -> bool:
        return all([_decode(body, _CacheReset).success for body in await self._post("/reset_prefix_cache")])

    async def load_adapter(self, name: str, path: str) -> None:
        """As `AdapterLoader`. path: on the upstream's machine."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": True}
        await self._post("/v1/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _post(
        self, path: str, body: Mapping[str, object] | None = None, *, query: dict[str, str] | None = None
    ) -> list[bytes]:
        """Post to all upstreams, also if one fails, and return their responses. Raises the first error."""
        target = f"{path}?{urlencode(query)}" if query else path
        client, content = HttpClient(self._timeouts), msgspec.json.encode(body or {})
        try:
            sent = (self._post_to(client, upstream, target, content) for upstream in self._upstreams)
            answers = await asyncio.gather(*sent, return_exceptions=True)
        finally:
            await client.close()
        # After all have answered: the others must not be left in the former state because one has failed.
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, bytes)]

    async def _post_to(self, client: HttpClient, upstream: Upstream, target: str, content: bytes) -> bytes:
        headers = {"content-type": "application/json", **build_auth_headers(upstream)}
        try:
            response = await client.send("POST", upstream.url.removesuffix("/v1") + target, headers, content)
            body = await response.read_all(MAX_ERROR_BODY)
            response.close()
        except HttpClientError as error:
            raise build_transport_error(error) from None
        if response.status in (200, 204):
            return body
        failure = parse_error(response.status, body, None)
        if failure.message in _NO_ROUTE:
            path = target.partition("?")[0]
            raise NotFound(
                f"The upstream does not have {path}: vLLM needs VLLM_SERVER_DEV_MODE=1 for its control, and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 for adapters.",
                code="unsupported_endpoint",
            )
        raise failure


def _decode(body: bytes, type: type[T]) -> T:
    """An empty or other body has the defaults: older servers answer with none."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return type()
