"""What surrounds the choices of an OpenAI answer: the fixed header, usage, errors and the end. Knows no choice."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import FinishReason, Token, Usage, WeightSpan
from . import logprobs
from .base import Header, Profile
from .errors import render_openai_error
from .json_encoding import encode_field, encode_int, encode_string, escape_line_breaks

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keepalive\n\n"


class RenderOptions(Struct, frozen=True, kw_only=True):
    """What the client asked to see, as far as Chat Completions and Completions share it.

    logprobs, prompt_logprobs: most alternatives a token, None for none at all. service_tier: say that it is the
    default. prompt_logprobs and the others appear only where they were asked for.
    weight_versions: at the end of each choice, which weights sampled it.
    """

    profile: Profile = Profile.OPENAI
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    service_tier: bool = False
    weight_versions: bool = False


class ResponseId(Struct, frozen=True):
    """The id that a client chose for its answer (vLLM's `request_id`), if it did."""

    prefix: str
    requested: str | None

    def apply_to(self, header: Header) -> Header:
        return header if self.requested is None else msgspec.structs.replace(header, id=self.prefix + self.requested)


class ChunkEnvelope:
    """One answer's frame. kinds: the `object` of a chunk and of the whole answer.

    before: what stands before the choices of a chunk.
    """

    __slots__ = ("_header", "_kinds", "_options", "_usage_field", "chunk_prefix")

    def __init__(self, header: Header, options: RenderOptions, kinds: tuple[bytes, bytes]) -> None:
        self._header, self._options, self._kinds = header, options, kinds
        self.chunk_prefix = b"data: " + _render_head(header, options, kinds[0])
        null_usage = options.include_usage and options.profile is Profile.OPENAI
        self._usage_field = b',"usage":null' if null_usage and not options.continuous_usage else b""

    @property
    def chunk_suffix(self) -> bytes:
        """What stands behind the choices of a chunk without further fields."""
        return b"]%s}\n\n" % self._usage_field

    def render_chunk(self, choices: bytes, usage: Usage | None = None, extra: bytes = b"") -> bytes:
        """A server-sent event. usage: if this chunk has it. extra: further fields, each after a comma."""
        usage_field = self._usage_field if usage is None else b',"usage":' + logprobs.render_usage(usage)
        return b"%s%s]%s%s}\n\n" % (self.chunk_prefix, choices, usage_field, extra)

    def render_usage_chunk(self, usage: Usage) -> bytes:
        """The chunk with usage and no choices, where it was asked for."""
        return self.render_chunk(b"", usage) if self._options.include_usage else b""

    def render_object(self, choices: bytes, usage: Usage, extra: bytes = b"") -> bytes:
        head = _render_head(self._header, self._options, self._kinds[1])
        return b'%s%s],"usage":%s%s}' % (head, choices, logprobs.render_usage(usage), extra)

    def render_error(self, error: DragomanError) -> bytes:
        """The last event of a stream that failed. No [DONE] follows: some clients take that for success."""
        return b"data: %s\n\n" % render_openai_error(error, self._options.profile)


class ChunkWriter:
    """What the writers of chunks have in common: how a stream ends, waits and fails."""

    __slots__ = ("_envelope",)

    _envelope: ChunkEnvelope

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return self._envelope.render_error(error)


def _render_head(header: Header, options: RenderOptions, kind: bytes) -> bytes:
    fields = [
        b'"id":' + encode_string(header.id),
        b'"object":"%s"' % kind,
        b'"created":%d' % header.created,
        b'"model":' + encode_string(header.model),
    ]
    if options.service_tier:
        fields.append(b'"service_tier":"default"')
    if header.fingerprint is not None:
        fields.append(b'"system_fingerprint":' + encode_string(header.fingerprint))
    return b'{%s,"choices":[' % b",".join(fields)


class UsageCounter:
    """Usage so far, for chunks that each carry it."""

    __slots__ = ("_cached", "_completion", "_prompt")

    def __init__(self, prompt: int = 0, cached: int | None = None) -> None:
        self._prompt, self._cached, self._completion = prompt, cached, 0

    def add(self, tokens: Sequence[Token]) -> None:
        self._completion += len(tokens)

    @property
    def usage(self) -> Usage:
        return Usage(self._prompt, self._completion, self._cached)


def render_finish_reason(reason: FinishReason, profile: Profile) -> bytes:
    """A finish reason without tools.

    OpenAI has no word for an answer that was ended from outside. It is `length` there: cut off, and never to be
    taken for complete, as `stop` would be.
    """
    if reason is FinishReason.ABORT and profile is Profile.OPENAI:
        return b'"length"'
    return b'"%s"' % reason.value.encode()


def render_kv_transfer(params: str | None, profile: Profile) -> bytes:
    """vLLM's field of a whole answer: its profile always has it, OpenAI's where there is something to say."""
    if params is None:
        return b',"kv_transfer_params":null' if profile is Profile.VLLM else b""
    return encode_field("kv_transfer_params", params)


def render_weight_versions(spans: tuple[WeightSpan, ...] | None) -> bytes:
    """vLLM's field of a choice that has ended: which tokens were sampled by which weights; null where nobody knows."""
    return b',"weight_versions":%s' % escape_line_breaks(msgspec.json.encode(spans))


def render_stop_reason(stop: str | int | None) -> bytes:
    """vLLM's: the matched stop string or token id."""
    return encode_string(stop) if isinstance(stop, str) else encode_int(stop)
