"""Chat Completions on the wire: the chunks of a stream and the whole object, out of the same pieces.

    each choice:  role  (content | reasoning | refusal | tool deltas)*  finish
    the stream:   all roles in index order, then the choices interleaved, [usage], [DONE] or an error

Knows neither HTTP nor where events come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ..base import Header, Profile
from ..content_tokens import ContentTokens, content_tokens
from ..envelope import ChunkWriter, Counter, Envelope, View, finish, kv_transfer, stop_reason, weight_versions
from ..logprobs import Naming, chat_entries, prompt_logprobs, token_ids
from ..text import json_field, quoted
from . import pieces

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Clients read one or the other; sending both doubled the text in none of them."""

KINDS = (b"chat.completion.chunk", b"chat.completion")
CONTENT = b'"content":'


class ChatView(View, frozen=True, kw_only=True):
    """What the client asked to see.

    reasoning_fields: the names of the reasoning; none hides it. named_choice: `tool_choice` named one function,
    which OpenAI lets finish as `stop`. legacy_functions: a call is a `function_call`, of which there is at most one.
    """

    prompt_text: bool = False
    reasoning_fields: tuple[str, ...] = REASONING_FIELDS
    named_choice: bool = False
    legacy_functions: bool = False


DEFAULT_VIEW = ChatView()


class _Said:
    """One choice of a stream: the calls so far, and the tokens that no chunk has carried yet.

    held: all of them. scored: those that `logprobs` lists, and whether they are of a refusal. content: the tokens of
    the text that is being written, and whether that is a refusal.
    """

    __slots__ = ("calls", "content", "custom", "held", "scored")

    def __init__(self) -> None:
        self.calls = 0
        self.custom = False
        self.held: list[Token] = []
        self.scored: list[tuple[bool, Token]] = []
        self.content: tuple[bool, ContentTokens] | None = None

    def score(self, text: str | None, tokens: Sequence[Token], *, refusal: bool) -> None:
        """text: what the tokens released of the content, or of a refusal; None where it is neither."""
        if self.content is not None and (text is None or self.content[0] is not refusal):
            kind, content = self.content
            self.scored.extend((kind, token) for token in content.close())
            self.content = None
        if text is not None:
            self.content = self.content or (refusal, ContentTokens())
            self.scored.extend((refusal, token) for token in self.content[1].feed(text, tokens))


class ChatWriter(ChunkWriter):
    """One answer, streamed or whole."""

    __slots__ = (
        "_choices",
        "_closing",
        "_counter",
        "_envelope",
        "_is_said",
        "_number",
        "_openings",
        "_plain",
        "_view",
        "_vllm",
        "_waiting",
        "_wants_prompt",
        "_wants_tokens",
    )

    def __init__(self, header: Header, view: ChatView = DEFAULT_VIEW) -> None:
        self._view = view
        self._envelope = Envelope(header, view, KINDS)
        self._vllm = view.profile is Profile.VLLM
        self._wants_prompt = view.token_ids or view.prompt_text
        self._wants_tokens = view.token_ids or view.logprobs is not None
        self._plain = not (self._wants_prompt or self._wants_tokens or view.continuous_usage)
        self._waiting = False
        self._number = 0
        self._is_said = bytearray()  # of each choice: whether a delta has told anything
        self._choices: dict[int, _Said] = {}
        self._openings: tuple[bytes, ...] = ()
        self._closing = b""
        self._counter = Counter() if view.continuous_usage else None

    def feed(self, event: Event) -> bytes:
        if self._plain and type(event) is TextDelta:
            # The path of nearly every token: one lookup, its text escaped, one concatenation.
            before, opening = self._envelope.before, self._openings[event.choice]
            if not event.text:
                return b""
            self._is_said[event.choice] = 1
            return b"".join((before, opening, CONTENT, quoted(event.text), self._closing))
        if self._waiting:
            prompt = event if isinstance(event, PromptTokens) else None
            return self._roles(prompt) + self._event(event)
        return self._event(event)

    def full(self, reply: Reply) -> bytes:
        choices = b",".join(self._choice(i, choice) for i, choice in enumerate(reply.choices))
        prompt = reply.prompts[0] if reply.prompts else None
        extra = self._of_prompt(prompt)
        if self._view.prompt_logprobs is not None and prompt is not None:
            extra += b',"prompt_logprobs":' + prompt_logprobs(prompt, self._view.prompt_logprobs)
        elif self._vllm:
            extra += b',"prompt_logprobs":null'
        extra += kv_transfer(reply.kv_transfer_params, self._view.profile)
        return self._envelope.whole(choices, reply.usage, extra)

    def _event(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        match event:
            case TextDelta(choice, text, tokens):
                self._score(choice, text, tokens)
                return self._delta(choice, text and b'"content":' + quoted(text), tokens)
            case ReasoningDelta(choice, text, tokens):
                self._score(choice, None, tokens)
                if text:
                    self._is_said[choice] = 1  # also where it is hidden
                shown = text and pieces.reasoning(self._view.reasoning_fields, quoted(text))
                return self._delta(choice, shown, tokens)
            case RefusalDelta(choice, text, tokens):
                self._score(choice, text, tokens, refusal=True)
                return self._delta(choice, text and b'"refusal":' + quoted(text), tokens)
            case ToolCallStart(choice):
                self._score(choice, None, event.tokens)
                return self._delta(choice, self._call_start(event), event.tokens)
            case ToolCallDelta(choice):
                self._score(choice, None, event.tokens)
                return self._delta(choice, self._call_arguments(event), event.tokens)
            case ChoiceFinished():
                return self._finish(event)
            case Started():
                return self._start(event)
            case PromptTokens():
                return b""
            case Finished(usage):
                return self._envelope.final(usage)

    def _start(self, event: Started) -> bytes:
        self._number = event.choices
        self._is_said = bytearray(event.choices)
        self._openings = tuple([b'{"index":%d,"delta":{' % i for i in range(event.choices)])
        self._closing = b'},"logprobs":null,"finish_reason":null%s}%s' % (self._token_ids(()), self._envelope.after)
        if self._counter is not None:
            self._counter = Counter(event.prompt_tokens, event.cached_tokens)
        self._waiting = self._wants_prompt
        return b"" if self._waiting else self._roles(None)

    def _roles(self, prompt: PromptTokens | None) -> bytes:
        """All roles, in index order and before anything else: the official SDK appends choices as they arrive.

        In OpenAI's profile without a content, so that an answer of calls alone folds to the null that the whole has.
        """
        self._waiting = False
        extra = self._of_prompt(prompt)
        scores = b"null" if self._view.logprobs is None or self._vllm else b'{"content":[],"refusal":null}'
        content = b',"content":""' if self._vllm else b""
        rest = b'"delta":{"role":"assistant"%s},"logprobs":%s,"finish_reason":null}' % (content, scores)
        choices = (b'{"index":%d,%s' % (i, rest) for i in range(self._number))
        return b"".join(self._envelope.chunk(choice, self._usage(), extra) for choice in choices)

    def _said(self, choice: int) -> _Said:
        """Made when there is something to remember: of most choices there never is."""
        known = self._choices.get(choice)
        if known is None:
            known = self._choices[choice] = _Said()
        return known

    def _call_start(self, event: ToolCallStart) -> bytes:
        said = self._said(event.choice)
        said.calls += 1
        said.custom = event.custom
        if not self._view.legacy_functions:
            return pieces.call_start(event, said.calls - 1)
        return pieces.legacy_start(event) if said.calls == 1 else b""

    def _call_arguments(self, event: ToolCallDelta) -> bytes:
        said = self._said(event.choice)
        if not event.arguments or (self._view.legacy_functions and said.calls > 1):
            return b""
        if self._view.legacy_functions:
            return pieces.legacy_arguments(event.arguments)
        return pieces.call_arguments(event.arguments, said.calls - 1, said.custom)

    def _delta(self, choice: int, field: bytes | str, tokens: Sequence[Token]) -> bytes:
        """field: the one that the delta has; where there is none, the tokens wait for the next chunk."""
        self._keep(choice, tokens)
        if not isinstance(field, bytes) or not field:
            return b""
        self._is_said[choice] = 1
        if self._plain:
            return b"".join((self._envelope.before, self._openings[choice], field, self._closing))
        return self._chunk(choice, b"{%s}" % field, b"null")

    def _finish(self, event: ChoiceFinished) -> bytes:
        self._score(event.choice, None, event.tokens)
        self._keep(event.choice, event.tokens)
        reason = self._reason(event.reason, self._said(event.choice).calls > 0) + self._weights(event)
        transfer = json_field("kv_transfer_params", event.kv_transfer_params)
        # An answer without anything has a content, which is empty, streamed as in the whole.
        is_told = self._vllm or self._is_said[event.choice]
        empty = b"" if is_told else self._chunk(event.choice, b'{"content":""}', b"null")
        return empty + self._chunk(event.choice, b"{}", reason + self._stop(event.stop), transfer)

    def _keep(self, choice: int, tokens: Sequence[Token]) -> None:
        if self._counter is not None:
            self._counter.add(tokens)
        if self._view.token_ids:
            self._said(choice).held.extend(tokens)

    def _score(self, choice: int, text: str | None, tokens: Sequence[Token], *, refusal: bool = False) -> None:
        """Which tokens `logprobs` lists: in vLLM's profile all of them, as there, else those of the content."""
        if self._view.logprobs is None:
            return
        said = self._said(choice)
        if self._vllm:
            said.scored.extend((refusal, token) for token in tokens)
        else:
            said.score(text, tokens, refusal=refusal)

    def _chunk(self, choice: int, delta: bytes, reason: bytes, extra: bytes = b"") -> bytes:
        """extra: further fields of the chunk, each after a comma."""
        said = self._said(choice)
        held, said.held = said.held, []
        scored, said.scored = said.scored, []
        ids = self._token_ids(held)
        body = b'{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice, delta, self._logprobs(scored) if scored else b"null", reason, ids,
        )  # fmt: skip
        return self._envelope.chunk(body, self._usage(), extra)

    def _choice(self, index: int, choice: Choice) -> bytes:
        view = self._view
        message = pieces.message(choice, view.reasoning_fields, view.profile, view.legacy_functions)
        scores = b"null" if view.logprobs is None else self._logprobs(self._scored(choice), whole=True)
        reason = self._reason(choice.reason, choice.called_tools) + self._stop(choice.stop)
        ids = self._token_ids(choice.tokens) + self._weights(choice)
        return b'{"index":%d,"message":%s,"logprobs":%s,"finish_reason":%s%s}' % (index, message, scores, reason, ids)

    def _scored(self, choice: Choice) -> list[tuple[bool, Token]]:
        """See `_score`."""
        if self._vllm:
            listed = [(isinstance(part, Refusal), token) for part in choice.parts for token in part.tokens]
            return [*listed, *((False, token) for token in choice.tail)]
        return [
            (isinstance(part, Refusal), token)
            for part in choice.parts
            if isinstance(part, Text | Refusal)
            for token in content_tokens(part.text, part.tokens)
        ]

    def _reason(self, reason: FinishReason, called: bool) -> bytes:
        """A call that was cut off is no call: length goes before. What was forced by name just stops."""
        if reason is not FinishReason.STOP or not called or self._view.named_choice:
            return finish(reason, self._view.profile)
        return b'"function_call"' if self._view.legacy_functions else b'"tool_calls"'

    def _weights(self, ended: ChoiceFinished | Choice) -> bytes:
        return weight_versions(ended.weights) if self._view.weight_versions else b""

    def _stop(self, stop: str | int | None) -> bytes:
        return b',"stop_reason":' + stop_reason(stop) if self._vllm else b""

    def _logprobs(self, told: Sequence[tuple[bool, Token]], whole: bool = False) -> bytes:
        """Refusals have a list of their own. Streamed lists that are empty are null, so that they add nothing."""
        top = self._view.logprobs
        if top is None:
            return b"null"
        naming = Naming(self._view.tokens_as_ids)
        content = [token for refusal, token in told if not refusal]
        refused = [token for refusal, token in told if refusal]
        return b'{"content":%s,"refusal":%s}' % (
            chat_entries(content, top, naming) if content or whole else b"null",
            chat_entries(refused, top, naming) if refused else b"null",
        )

    def _token_ids(self, tokens: Sequence[Token]) -> bytes:
        if self._view.token_ids:
            return b',"token_ids":' + token_ids(tokens)
        return b',"token_ids":null' if self._vllm else b""

    def _of_prompt(self, prompt: PromptTokens | None) -> bytes:
        """What the first chunks and the whole object say of the prompt."""
        view, extra = self._view, b""
        if view.token_ids or self._vllm:
            ids = token_ids(prompt.tokens) if view.token_ids and prompt is not None else b"null"
            extra += b',"prompt_token_ids":' + ids
        if view.prompt_text or self._vllm:
            extra += b',"prompt_text":' + (quoted(prompt.text) if view.prompt_text and prompt is not None else b"null")
        return extra

    def _usage(self) -> Usage | None:
        return None if self._counter is None else self._counter.usage
