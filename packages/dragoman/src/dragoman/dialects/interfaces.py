"""The interfaces of a dialect.

A reader parses a body into the canonical request, a writer serializes canonical events;
neither does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field

from ..core.errors import DragomanError
from ..core.events import Event
from ..core.field_names import CORE_NAMES, FieldNames
from ..core.reply import Reply
from ..core.request import GenerateRequest
from ..core.server_tools import HostedTarget, RequestedServer, ServerToolPlan, ToolList
from .plan_cache import PlanCache
from .sealing import SealingKey


class Profile(StrEnum):
    """The set of optional response fields: only OpenAI's, or also those that vLLM adds."""

    OPENAI = "openai"
    VLLM = "vllm"


class Header(Struct, frozen=True):
    """The fields that all chunks of one answer share.

    created: Unix seconds.
    fingerprint: `system_fingerprint`.
    """

    id: str
    created: int
    model: str
    fingerprint: str | None = None


class Writer(Protocol):
    """Serializes one answer, as a stream or as one object."""

    def feed(self, event: Event) -> bytes:
        """Render one canonical event as complete server-sent events; may be empty."""
        ...

    def render_full(self, reply: Reply) -> bytes:
        """Render the same answer as one JSON object."""
        ...

    def render_error(self, error: DragomanError) -> bytes:
        """Render the terminal events of an answer that failed after it had started."""
        ...

    @property
    def end(self) -> bytes:
        """The end of a successful stream: `data: [DONE]` or nothing."""
        ...

    @property
    def keepalive(self) -> bytes:
        """The bytes that keep an idle stream alive in this dialect."""
        ...


class GenerationCall(Struct, frozen=True):
    """A parsed request body.

    Attributes:
        requests: one for each prompt, in order; all with the same number of choices.
        stream: the client wants a stream.
        id_prefix: prefix of the response id.
        writer: creates the writer of the response.
        warnings: human-readable descriptions of ignored parameters.
        unknown: names of unknown fields.
        tool_prefix: prefix of the ids of tool calls.
        field_names: maps the core's names of fields to the client's.
        server_tools: the tools that this server calls itself; None if there are none.
        unlisted: the servers that must list their tools first.
        with_tool_lists: returns the call with their lists. Raises RequestError.
    """

    requests: tuple[GenerateRequest, ...]
    stream: bool
    id_prefix: str
    writer: Callable[[Header], Writer]
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tool_prefix: str = "call_"
    field_names: FieldNames = CORE_NAMES
    server_tools: ServerToolPlan | None = None
    unlisted: tuple[RequestedServer, ...] = ()
    with_tool_lists: Callable[[tuple[ToolList, ...]], GenerationCall] | None = None


class ReaderOptions(Struct, frozen=True, eq=False):
    """The server settings and the caller's key that affect parsing. Compared by identity,
    which finds the plans of earlier bodies at little cost.

    default_model: the model of a body without one; None makes `model` required.
    max_stop: maximum stop strings of a request.
    max_n: maximum choices for each prompt.
    sealing_key: the server's key, bound to this caller; None if the server has no key.
    tokens_as_ids: default of `return_tokens_as_token_ids`.
    drop_nonces: remove the nonces that some agents put at the start of every prompt;
    they would defeat the prefix cache.
    keeps_seal: pass the seals of reasoning on to the engine, which verifies them
        itself, instead of rejecting them.
    hosted_tools: the operator's tools that run hosted tools, by their kind, such as
        `web_search`.
    plans: what the fields of earlier bodies say. Its keys contain these options.
    """

    profile: Profile = Profile.OPENAI
    default_model: str | None = None
    max_stop: int = 16
    max_n: int = 128
    sealing_key: SealingKey | None = None
    drop_nonces: bool = True
    tokens_as_ids: bool = False
    keeps_seal: bool = False
    hosted_tools: Mapping[str, HostedTarget] = {}
    plans: PlanCache = field(default_factory=PlanCache)
