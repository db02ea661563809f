"""/inference/v1/generate on the wire: the tokens of a stream and the whole object, out of the same pieces.

The text that the tokens would be is nowhere in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError
from ...core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    Token,
    Usage,
)
from ...core.reply import Reply
from ..base import Header, Profile
from ..envelope import COMMENT, DONE, finish, kv_transfer, weight_versions
from ..errors import openai_error
from ..logprobs import prompt_logprobs, token_ids, usage
from ..text import json_field, logprob, quoted


class GenerateView(Struct, frozen=True, kw_only=True):
    """What the client asked to see. logprobs, prompt_logprobs: most alternatives a token, None for none at all."""

    profile: Profile = Profile.OPENAI
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_usage: bool = False


DEFAULT_VIEW = GenerateView()


class _Top(Struct, frozen=True):
    """token: for those who read ids out of a chat's logprobs; token_id: for those who read vLLM's own."""

    token: str
    token_id: int
    logprob: float
    rank: int | None
    bytes: None = None


class _Scored(Struct, frozen=True):
    token: str
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[_Top]
    bytes: None = None


class GenerateWriter:
    """One answer, streamed or whole."""

    def __init__(self, header: Header, view: GenerateView = DEFAULT_VIEW) -> None:
        self._view = view
        self._head = b'{"request_id":%s,"choices":[' % quoted(header.id)

    @property
    def end(self) -> bytes:
        return DONE

    @property
    def keepalive(self) -> bytes:
        return COMMENT

    def error(self, error: DragomanError) -> bytes:
        return b"data: %s\n\n" % openai_error(error, self._view.profile)

    def feed(self, event: Event) -> bytes:
        match event:
            case Started() | PromptTokens():
                return b""
            case Finished(usage=counted):
                return self._chunk(b"", b',"usage":' + usage(counted)) if self._view.include_usage else b""
            case ChoiceFinished(choice, reason, _, tokens, params, weights):
                end = self._choice(choice, tokens, reason, weight_versions(weights))
                return self._chunk(end, json_field("kv_transfer_params", params))
            case _:
                return self._chunk(self._choice(event.choice, event.tokens, None)) if event.tokens else b""

    def full(self, reply: Reply) -> bytes:
        choices = (
            self._choice(i, choice.tokens, choice.reason, weight_versions(choice.weights))
            for i, choice in enumerate(reply.choices)
        )
        prompt = reply.prompts[0] if reply.prompts else None
        scores = b"null"
        if self._view.prompt_logprobs is not None and prompt is not None:
            scores = prompt_logprobs(prompt, self._view.prompt_logprobs)
        extra = b',"prompt_logprobs":%s%s' % (scores, kv_transfer(reply.kv_transfer_params, Profile.VLLM))
        return self._whole(b",".join(choices), extra, reply.usage)

    def _chunk(self, choices: bytes, extra: bytes = b"") -> bytes:
        return b"data: %s%s]%s}\n\n" % (self._head, choices, extra)

    def _whole(self, choices: bytes, extra: bytes, counted: Usage) -> bytes:
        return b'%s%s]%s,"usage":%s}' % (self._head, choices, extra, usage(counted))

    def _choice(self, index: int, tokens: Sequence[Token], reason: FinishReason | None, extra: bytes = b"") -> bytes:
        """extra: further fields, each after a comma."""
        said = b"null" if reason is None else finish(reason, self._view.profile)
        return b'{"index":%d,"logprobs":%s,"finish_reason":%s,"token_ids":%s%s}' % (
            index, self._logprobs(tokens), said, token_ids(tokens), extra,
        )  # fmt: skip

    def _logprobs(self, tokens: Sequence[Token]) -> bytes:
        most = self._view.logprobs
        if most is None:
            return b"null"
        return b'{"content":%s}' % msgspec.json.encode([_scored(token, most) for token in tokens])


def _scored(token: Token, most: int) -> _Scored:
    top = [_top(other, rank) for rank, other in enumerate(token.top[:most], start=1)]
    return _Scored(f"token_id:{token.id}", token.id, logprob(token.logprob), token.rank, top)


def _top(other: Alternative, rank: int) -> _Top:
    return _Top(f"token_id:{other.id}", other.id, logprob(other.logprob), rank)
