"""Administration of all upstreams of one model at once, through vLLM's routes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from dragoman_http import ClientTimeouts, HttpClient, HttpClientError

from ...core.engine_control import PauseMode
from ...core.errors import NotFound
from .errors import MAX_ERROR_BODY, build_transport_error, parse_error
from .upstream_server import Upstream, build_auth_headers

T = TypeVar("T")


_NO_ROUTE = frozenset({"Not Found", "Method Not Allowed"})
"""FastAPI's messages for a route that does not exist."""


class _Aborted(Struct):
    aborted: int = 0


class _CacheReset(Struct):
    success: bool = True


class UpstreamControl:
    """Administers upstreams through vLLM's routes: pause, sleep, prefix cache,
    adapters. Each call goes to all of them.

    Implements `core.engine_control.EngineControl`, and `PrefixCache` and
    `AdapterLoader` of `core.engine`.

    `is_paused` and `sleep_level` reflect only the calls made here: the state of the
    upstreams is not queried.
    """

    def __init__(self, upstreams: Sequence[Upstream], timeouts: ClientTimeouts) -> None:
        self._upstreams = upstreams
        self._timeouts = timeouts
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
        self._is_paused = True
        self._sleep_level = level

    async def wake_up(self) -> None:
        await self._post("/wake_up")
        self._is_paused = False
        self._sleep_level = 0

    async def abort_all(self) -> int:
        return sum(_decode(body, _Aborted).aborted for body in await self._post("/abort_requests"))

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int | None:  # noqa: ARG002 - of the protocol
        """Implements `PrefixCache`: None, since the contents of the upstreams' caches
        are unknown.
        """
        return None

    async def reset_prefix_cache(self) -> bool:
        return all(
            [_decode(body, _CacheReset).success for body in await self._post("/reset_prefix_cache")]
        )

    async def load_adapter(self, name: str, path: str) -> None:
        """Implements `AdapterLoader`. path: a path on the upstream's machine."""
        body = {"lora_name": name, "lora_path": path, "load_inplace": True}
        await self._post("/v1/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _post(
        self,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        query: dict[str, str] | None = None,
    ) -> list[bytes]:
        """Post to all upstreams, also if one fails, and return their responses. Raises
        the first error.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        client = HttpClient(self._timeouts)
        content = msgspec.json.encode(body or {})
        try:
            posts = (
                self._post_to(client, upstream, target, content) for upstream in self._upstreams
            )
            answers = await asyncio.gather(*posts, return_exceptions=True)
        finally:
            await client.close()
        # Only after all have answered: one failure must not leave the others in the
        # previous state.
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, bytes)]

    async def _post_to(
        self, client: HttpClient, upstream: Upstream, target: str, content: bytes
    ) -> bytes:
        headers = {"content-type": "application/json", **build_auth_headers(upstream)}
        try:
            response = await client.send(
                "POST", upstream.url.removesuffix("/v1") + target, headers, content
            )
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
                f"The upstream does not have {path}: vLLM needs VLLM_SERVER_DEV_MODE=1 for its "
                f"control, and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 for adapters.",
                code="unsupported_endpoint",
            )
        raise failure


def _decode(body: bytes, type: type[T]) -> T:
    """Decode a body. An empty or unexpected one gives the defaults of `type`, since
    older servers send none.
    """
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return type()
