"""The upstreams of one model: load balancing between them, and administration of all of
them at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from ...core.control import PauseMode
from ...core.errors import NotFound
from ...core.message import Role
from ...core.request import Conversation, Prompt
from dragoman_http import ClientTimeouts, HttpClient, HttpClientError
from .discovery import Upstream, build_auth_headers
from .errors import MAX_ERROR_BODY, build_transport_error, parse_error

T = TypeVar("T")

MAX_PREFIX = 4096
"""Length of the hashed prefix, characters or tokens. Only the start of a prompt counts,
as in prefix caches.
"""

OVERLOAD_FACTOR = 1.25
"""Multiple of its share of the load above which an upstream is skipped for the next
one.
"""

_NO_ROUTE = frozenset({"Not Found", "Method Not Allowed"})
"""FastAPI's messages for a route that does not exist."""


class UpstreamPool:
    """Balances the load over the upstreams that are up, by weight and with affinity to
    the prompt's prefix.

    It does no I/O: the caller reports which upstreams are up. An upstream counts as up
    until a failure is reported.

    running: the number of running requests of each upstream, maintained by the caller.
    """

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        if not upstreams:
            raise ValueError("at least one upstream is needed")
        self.upstreams = tuple(upstreams)
        self.running = [0] * len(upstreams)
        self._up = [True] * len(upstreams)

    @property
    def is_ready(self) -> bool:
        return any(self._up)

    def is_up(self, index: int) -> bool:
        return self._up[index]

    def set_up(self, index: int, *, up: bool) -> None:
        self._up[index] = up

    def choose(self, prefix: bytes, tried: Collection[int] = ()) -> int | None:
        """Choose the upstream for a prompt prefix, and return its index; None if none
        is left.

        Rendezvous hashing: when an upstream goes up or down, only its own conversations
        move. Bounded load: an upstream far above its share passes new requests on, so
        that one popular prefix does not overload it.
        """
        candidates = [
            index for index in range(len(self.upstreams)) if self._up[index] and index not in tried
        ]
        scores: dict[int, float] = {}
        for index in candidates:
            upstream = self.upstreams[index]
            # 64 bytes are the longest key of BLAKE2b.
            digest = hashlib.blake2b(prefix, digest_size=8, key=upstream.url.encode()[:64]).digest()
            # Strictly between 0 and 1: log(0) is undefined, and log(1) would be the
            # divisor 0.
            uniform = (int.from_bytes(digest) + 1) / (2**64 + 2)
            scores[index] = -upstream.weight / math.log(uniform)
        ranked = sorted(candidates, key=scores.__getitem__, reverse=True)
        # The new request counts too: otherwise every share of an idle pool would be 0.
        total = sum(self.running[index] for index in candidates) + 1
        weights = sum(self.upstreams[index].weight for index in candidates)
        for index in ranked:
            share = total * self.upstreams[index].weight / weights
            if self.running[index] + 1 <= math.ceil(OVERLOAD_FACTOR * share):
                return index
        return ranked[0] if ranked else None


def build_prefix(prompt: Prompt) -> bytes:
    """Build the prefix that all turns of a conversation share: tools and everything up
    to the first user message.
    """
    match prompt:
        case Conversation(messages, tools):
            count = next(
                (n for n, message in enumerate(messages, 1) if message.role is Role.USER),
                len(messages),
            )
            return msgspec.json.encode((tools, messages[:count]))[: 4 * MAX_PREFIX]
        case str():
            return prompt[:MAX_PREFIX].encode("utf-8", "surrogatepass")
        case tuple():
            return msgspec.json.encode(prompt[:MAX_PREFIX])


# Administration.


class _Aborted(Struct):
    aborted: int = 0


class _CacheReset(Struct):
    success: bool = True


class UpstreamControl:
    """Administers upstreams through vLLM's routes: pause, sleep, prefix cache,
    adapters. Each call goes to all of them.

    Implements `core.control.EngineControl`, and `PrefixCache` and `AdapterLoader` of
    `core.engine`.

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
