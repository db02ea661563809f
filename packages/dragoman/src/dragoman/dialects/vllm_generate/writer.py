"""Renders the token ids that /inference/v1/generate returns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError
from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    Token,
)
from ...core.reply import Reply
from ..chunk_envelope import render_finish_reason
from ..interfaces import Header, Profile
from ..json_encoding import clamp_logprob, encode_field, encode_string
from ..logprobs import render_prompt_logprobs, render_token_ids
from ..openai_errors import render_openai_error
from ..server_sent_events import DONE, KEEPALIVE_COMMENT
from ..token_usage import render_usage
from ..vllm_response_fields import render_kv_transfer, render_weight_versions


class GenerateRenderOptions(Struct, frozen=True, kw_only=True):
    """The response options of /inference/v1/generate.

    logprobs, prompt_logprobs: maximum alternatives for each token; None omits logprobs.
    include_usage: end a stream with usage.
    """

    profile: Profile = Profile.OPENAI
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_usage: bool = False


DEFAULT_OPTIONS = GenerateRenderOptions()


class GenerateTopLogprob(Struct, frozen=True):
    """An alternative.

    token: `token_id:` and the id, as chat logprobs with token ids have it.
    token_id: the id.
    """

    token: str
    token_id: int
    logprob: float
    rank: int | None
    bytes: None = None


class GenerateTokenLogprob(Struct, frozen=True):
    token: str
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[GenerateTopLogprob]
    bytes: None = None


class GenerateWriter:
    """Renders one answer, streamed or full."""

    def __init__(self, header: Header, options: GenerateRenderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._head = b'{"request_id":%s,"choices":[' % encode_string(header.id)

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    def render_error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % render_openai_error(error, self._options.profile)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started() | PromptTokens():
                return b""
            case Finished(usage=token_usage):
                return (
                    self._render_chunk(b"", b',"usage":' + render_usage(token_usage))
                    if self._options.include_usage
                    else b""
                )
            case ChoiceFinished(choice, reason, _, tokens, params, weights):
                finish = self._render_choice(
                    choice, tokens, reason, render_weight_versions(weights)
                )
                return self._render_chunk(finish, encode_field("kv_transfer_params", params))
            case _:
                return (
                    self._render_chunk(self._render_choice(event.choice, event.tokens, None))
                    if event.tokens
                    else b""
                )

    def render_full(self, reply: Reply) -> bytes:
        choices = (
            self._render_choice(
                i, choice.tokens, choice.reason, render_weight_versions(choice.weights)
            )
            for i, choice in enumerate(reply.choices)
        )
        prompt = reply.prompts[0] if reply.prompts else None
        prompt_scores = b"null"
        if self._options.prompt_logprobs is not None and prompt is not None:
            prompt_scores = render_prompt_logprobs(prompt, self._options.prompt_logprobs)
        extra = b',"prompt_logprobs":%s%s' % (
            prompt_scores,
            render_kv_transfer(reply.kv_transfer_params, Profile.VLLM),
        )
        return b'%s%s]%s,"usage":%s}' % (
            self._head,
            b",".join(choices),
            extra,
            render_usage(reply.usage),
        )

    def _render_chunk(self, choices: bytes, extra: bytes = b"") -> bytes:
        return b"data: %s%s]%s}\n\n" % (self._head, choices, extra)

    def _render_choice(
        self, index: int, tokens: Sequence[Token], reason: FinishReason | None, extra: bytes = b""
    ) -> bytes:
        """Render a choice, or a piece of one.

        reason: None if the choice has not finished.
        extra: additional fields, each after a comma.
        """
        finish_reason = (
            b"null" if reason is None else render_finish_reason(reason, self._options.profile)
        )
        logprobs = b"null"
        max_top = self._options.logprobs
        if max_top is not None:
            entries: list[GenerateTokenLogprob] = []
            for token in tokens:
                top = [
                    GenerateTopLogprob(
                        f"token_id:{other.id}", other.id, clamp_logprob(other.logprob), rank
                    )
                    for rank, other in enumerate(token.top[:max_top], start=1)
                ]
                name = f"token_id:{token.id}"
                logprob = clamp_logprob(token.logprob)
                entries.append(GenerateTokenLogprob(name, token.id, logprob, token.rank, top))
            logprobs = b'{"content":%s}' % msgspec.json.encode(entries)
        return b'{"index":%d,"logprobs":%s,"finish_reason":%s,"token_ids":%s%s}' % (
            index, logprobs, finish_reason, render_token_ids(tokens), extra,
        )  # fmt: skip
