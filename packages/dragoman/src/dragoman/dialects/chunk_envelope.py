"""Renders the parts around the choices, which Chat Completions shares with Completions."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import Finished, FinishReason, Usage
from .interfaces import Header, Profile
from .json_encoding import encode_string
from .openai_errors import render_openai_error
from .server_sent_events import DONE, KEEPALIVE_COMMENT
from .token_usage import render_usage
from .vllm_response_fields import render_metrics


class RenderOptions(Struct, frozen=True, kw_only=True):
    """The response options that Chat Completions and Completions share.

    logprobs, prompt_logprobs: maximum alternatives for each token; None omits logprobs.
    token_ids: the client set `return_token_ids`.
    tokens_as_ids: the client set `return_tokens_as_token_ids`, or the server's default
        does.
    include_usage: end a stream with usage.
    continuous_usage: add usage to every chunk.
    service_tier: report the default tier.
    weight_versions: report the versions of the weights that sampled each choice, at its
        end.
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
    """The response id that the client requested with vLLM's `request_id`.

    prefix: the dialect's prefix of response ids.
    requested: None keeps the generated id.
    """

    prefix: str
    requested: str | None

    def apply_to(self, header: Header) -> Header:
        return (
            header
            if self.requested is None
            else msgspec.structs.replace(header, id=self.prefix + self.requested)
        )


class ChunkEnvelope:
    """Renders the parts around the choices of one answer.

    kinds: the `object` of a chunk and of the full response.
    chunk_prefix: the bytes before the choices of a chunk, once the stream has begun.
    """

    __slots__ = ("_header", "_kinds", "_options", "_usage_field", "chunk_prefix")

    def __init__(self, header: Header, options: RenderOptions, kinds: tuple[bytes, bytes]) -> None:
        self._header = header
        self._options = options
        self._kinds = kinds
        self.chunk_prefix = b""
        # With `include_usage`, OpenAI sends `usage: null` in all other chunks; vLLM
        # omits the field.
        null_usage = options.include_usage and options.profile is Profile.OPENAI
        self._usage_field = b',"usage":null' if null_usage and not options.continuous_usage else b""

    def begin_stream(self) -> None:
        """Prepare the chunks of a stream. Call this before the first chunk."""
        # Rendered once, since id, model and time are the same in all chunks.
        self.chunk_prefix = b"data: " + _render_head(self._header, self._options, self._kinds[0])

    @property
    def chunk_suffix(self) -> bytes:
        """The bytes after the choices of a chunk without additional fields."""
        return b"]%s}\n\n" % self._usage_field

    def render_chunk(self, choices: bytes, usage: Usage | None = None, extra: bytes = b"") -> bytes:
        """Render a server-sent event.

        usage: the usage of this chunk, if any.
        extra: additional fields, each after a comma.
        """
        usage_field = self._usage_field if usage is None else b',"usage":' + render_usage(usage)
        return b"%s%s]%s%s}\n\n" % (self.chunk_prefix, choices, usage_field, extra)

    def render_usage_chunk(self, finished: Finished) -> bytes:
        """Render the last chunk, which has usage and no choices; empty unless
        requested.
        """
        if not self._options.include_usage:
            return b""
        return self.render_chunk(
            b"", finished.usage, render_metrics(finished.usage, finished.timings)
        )

    def render_object(self, choices: bytes, usage: Usage, extra: bytes = b"") -> bytes:
        head = _render_head(self._header, self._options, self._kinds[1])
        return b'%s%s],"usage":%s%s}' % (head, choices, render_usage(usage), extra)

    def render_error(self, error: DragomanError) -> bytes:
        """Render the last event of a failed stream. No [DONE] follows: some clients
        would mistake it for success.
        """
        return b"data: %s\n\n" % render_openai_error(error, self._options.profile)


class ChunkWriter:
    """The shared base of chunk writers: the end, keepalive and error of a stream."""

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
    fixed = _render_fixed_fields(header.model, header.fingerprint, options.service_tier)
    return b'{"id":%s,"object":"%s","created":%d,%s,"choices":[' % (
        encode_string(header.id), kind, header.created, fixed,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _render_fixed_fields(model: str, fingerprint: str | None, has_service_tier: bool) -> bytes:
    """Render the fields that are the same in nearly all answers."""
    fields = [b'"model":' + encode_string(model)]
    if has_service_tier:
        fields.append(b'"service_tier":"default"')
    if fingerprint is not None:
        fields.append(b'"system_fingerprint":' + encode_string(fingerprint))
    return b",".join(fields)


_FINISH_REASONS = {reason: b'"%s"' % reason.value.encode() for reason in FinishReason}


def render_finish_reason(reason: FinishReason, profile: Profile) -> bytes:
    """Render the finish reason of a choice without tool calls.

    A full context is `length`, as in OpenAI's API and vLLM. OpenAI has none for an
    aborted answer, which is reported as `length`: `stop` would mark it as complete.
    """
    if reason is FinishReason.CONTEXT_LENGTH or (
        reason is FinishReason.ABORT and profile is Profile.OPENAI
    ):
        return b'"length"'
    return _FINISH_REASONS[reason]
