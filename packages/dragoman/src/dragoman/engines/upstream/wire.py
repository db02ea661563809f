"""Wire types of upstream responses: chunks, whole responses and errors of Chat
Completions and Completions.

The types are lenient, since servers differ: unknown fields are ignored, and almost
every field is optional.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from ...core.reasoning_details import ReasoningDetail


class TokenLogprobEntry(Struct, frozen=True, gc=False):
    """One token of a chat completion's logprobs."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[TokenLogprobEntry] | None = None


class Logprobs(Struct, frozen=True, gc=False):
    """Logprobs of a choice. Chat completions use `content` and `refusal`, text
    completions the other three fields.
    """

    content: list[TokenLogprobEntry] | None = None
    refusal: list[TokenLogprobEntry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Function(Struct, frozen=True, gc=False):
    """A function call.

    arguments: JSON text, or the object itself.
    parameters: another name of them.
    """

    name: str | None = None
    arguments: Any = None
    parameters: Any = None


class Custom(Struct, frozen=True, gc=False):
    name: str | None = None
    input: str | None = None


class CallDelta(Struct, frozen=True, gc=False):
    """A tool call. name, arguments: of servers without `function`."""

    index: int | None = None
    name: str | None = None
    arguments: Any = None
    id: str | int | None = None
    function: Function | None = None
    custom: Custom | None = None


class ThinkingEntry(Struct, frozen=True):
    """An entry of LiteLLM's `thinking_blocks`, in Anthropic's format."""

    type: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Delta(Struct, frozen=True, gc=False):
    """A delta, or the message of a non-streamed response.

    content: a text, or Mistral's list of parts.
    reasoning_text, thinking: names of `reasoning` in other servers.
    function_call: the former form of one tool call.
    audio, images: content that cannot be passed on.
    """

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    reasoning_details: list[ReasoningDetail | None] | None = None
    thinking_blocks: list[ThinkingEntry | None] | None = None
    refusal: Any = None
    tool_calls: list[CallDelta | None] | CallDelta | None = None
    function_call: Function | None = None
    audio: Any = None
    images: Any = None


class PromptLogprobEntry(Struct, frozen=True, gc=False):
    """A token of a prompt, or an alternative to it, in vLLM's `prompt_logprobs`."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobRows = list[dict[str, PromptLogprobEntry] | None]
"""For each position of a prompt, the entries by token id; None for the first position.
"""


class ChunkChoice(Struct, frozen=True, gc=False):
    """A choice of a chunk or of a whole response.

    delta, message: content of a chat completion: `delta` in a chunk, `message` in a
        whole response.
    text: content of a text completion.
    stop_reason, matched_stop: the stop string or token that ended the choice; vLLM's
        and SGLang's names.
    usage: in Moonshot's last chunk.
    error: in OpenRouter's last chunk.
    """

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobRows | None = None
    usage: WireUsage | None = None
    error: Any = None


class Details(Struct, frozen=True, gc=False):
    """A breakdown of a token count.

    cache_write_tokens: OpenAI's name; vLLM 0.33 sends `created_cache_tokens`.
    """

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None
    reasoning_tokens: int | None = None


class WireUsage(Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None

    def update(self, newer: WireUsage) -> WireUsage:
        """Return the counts after newer ones, in which 0 says nothing about a count
        that is known.
        """
        prompt = newer if newer.prompt_tokens or not self.prompt_tokens else self
        completion = newer if newer.completion_tokens or not self.completion_tokens else self
        return WireUsage(
            prompt.prompt_tokens,
            completion.completion_tokens,
            prompt.prompt_tokens_details,
            completion.completion_tokens_details,
        )


class WireError(Struct, frozen=True, gc=False):
    """An error. retry_after: seconds, in Google's errors."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    retry_after: float | None = None


class UpstreamChunk(Struct, frozen=True, gc=False):
    """A chunk, or a whole response.

    object_type, type, message, detail, errors, code, param: of an error without an
        envelope.
    dragoman_warnings: only in whole responses; a stream contains them as an SSE
        comment.
    """

    choices: list[ChunkChoice | None] | None = None
    usage: WireUsage | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    prompt_logprobs: PromptLogprobRows | None = None
    error: Any = None
    object_type: str | None = field(name="object", default=None)
    type: str | None = None
    message: Any = None
    detail: Any = None
    errors: Any = None
    code: str | int | None = None
    param: str | None = None
    kv_transfer_params: Any = None
    dragoman_warnings: list[str] | None = None

    @property
    def kv_transfer_text(self) -> str | None:
        """`kv_transfer_params` as JSON; None if absent. See `core.engine.Ended`."""
        params = self.kv_transfer_params
        return None if params is None else msgspec.json.encode(params).decode()


class TokensResponse(Struct, frozen=True, gc=False):
    """The tokens of a prompt, in vLLM's format."""

    tokens: list[int]
    count: int
    token_strs: list[str] | None = None


class DetokenizedPrompt(Struct, frozen=True, gc=False):
    """The text of token ids, in vLLM's format."""

    prompt: str


class UpstreamErrorBody(Struct, frozen=True, gc=False):
    """The body of an error response: OpenAI's envelope, vLLM's older one, or FastAPI's."""

    error: Any = None
    message: str | None = None
    detail: Any = None
    param: str | None = None
    code: str | int | None = None


class InputTokens(Struct, frozen=True):
    """The count of a prompt's tokens, in `/messages/count_tokens` and
    `/responses/input_tokens`.
    """

    count: int = field(name="input_tokens")
