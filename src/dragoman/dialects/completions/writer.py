"""Completions on the wire: the chunks of a stream and the whole object, out of the same pieces.

    each choice:  [echo]  text*  finish
    the stream:   the choices interleaved, [usage], [DONE] or an error

A completion has one text. Reasoning and tool calls, which only an engine of events could tell apart from it, have
no place in it; their tokens are counted and listed like all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from ...core.message import Refusal, Text
from ...core.reply import Choice, Reply
from ..base import Header, Profile
from ..content_tokens import ContentTokens, content_tokens
from ..envelope import ChunkWriter, Counter, Envelope, View, finish, kv_transfer, stop_reason, weight_versions
from ..logprobs import Naming, Offsets, completion_entries, prompt_logprobs, token_ids
from ..text import json_field, quoted

KINDS = (b"text_completion", b"text_completion")


class CompletionsView(View, frozen=True, kw_only=True):
    """What the client asked to see. special_tokens_in_text: control tokens are part of the text, and of its offsets."""

    echo: bool = False
    special_tokens_in_text: bool = False


DEFAULT_VIEW = CompletionsView()


class _Said:
    """One choice of a stream: its offsets, and what no chunk has carried yet.

    held: its tokens. scored: those of them that `logprobs` lists.
    """

    __slots__ = ("content", "held", "offsets", "prompt", "scored")

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.content = ContentTokens()
        self.held: list[Token] = []
        self.scored: list[Token] = []
        self.prompt: PromptTokens | None = None


class CompletionsWriter(ChunkWriter):
    """One answer, streamed or whole."""

    __slots__ = ("_choices", "_closing", "_counter", "_each", "_openings", "_plain", "_view", "_vllm", "_wants_tokens")

    def __init__(self, header: Header, view: CompletionsView = DEFAULT_VIEW) -> None:
        self._view = view
        self._envelope = Envelope(header, view, KINDS)
        self._vllm = view.profile is Profile.VLLM
        self._wants_tokens = view.token_ids or view.logprobs is not None
        self._plain = not (self._wants_tokens or view.continuous_usage)
        self._each = 1
        self._choices: dict[int, _Said] = {}
        self._openings: tuple[bytes, ...] = ()
        self._closing = b""
        self._counter = Counter() if view.continuous_usage else None

    def feed(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        if self._plain and type(event) is TextDelta:
            # The path of nearly every token: one lookup, its text escaped, one concatenation.
            before, opening = self._envelope.before, self._openings[event.choice]
            return b"".join((before, opening, quoted(event.text), self._closing)) if event.text else b""
        match event:
            case TextDelta(choice, text, tokens) | RefusalDelta(choice, text, tokens):
                self._keep(choice, tokens, text)
                return self._chunk(choice, text) if text else b""
            case ReasoningDelta() | ToolCallStart() | ToolCallDelta():
                self._keep(event.choice, event.tokens)
                return b""
            case ChoiceFinished():
                return self._finish(event)
            case PromptTokens():
                return self._prompt(event)
            case Started():
                return self._start(event)
            case Finished(usage):
                return self._envelope.final(usage)

    def full(self, reply: Reply) -> bytes:
        each = len(reply.choices) // max(1, len(reply.prompts))
        prompts = [reply.prompts[i // each] if reply.prompts else None for i in range(len(reply.choices))]
        choices = (self._choice(i, choice, prompts[i]) for i, choice in enumerate(reply.choices))
        extra = kv_transfer(reply.kv_transfer_params, self._view.profile)
        return self._envelope.whole(b",".join(choices), reply.usage, extra)

    def _start(self, event: Started) -> bytes:
        self._openings = tuple([b'{"index":%d,"text":' % i for i in range(event.choices)])
        extensions = self._extensions(None, (), None)
        self._closing = b',"logprobs":null,"finish_reason":null%s}%s' % (extensions, self._envelope.after)
        self._each = event.choices // event.prompts
        if self._counter is not None:
            self._counter = Counter(event.prompt_tokens, event.cached_tokens)
        return b""

    def _said(self, choice: int) -> _Said:
        """Made when there is something to remember: of most choices there never is."""
        known = self._choices.get(choice)
        if known is None:
            known = self._choices[choice] = _Said(self._offsets())
        return known

    def _finish(self, event: ChoiceFinished) -> bytes:
        self._keep(event.choice, event.tokens, ended=True)
        transfer = json_field("kv_transfer_params", event.kv_transfer_params)
        reason = finish(event.reason, self._view.profile) + self._weights(event)
        return self._chunk(event.choice, "", reason, event.stop, transfer)

    def _prompt(self, event: PromptTokens) -> bytes:
        """An echo is the first chunk of each of this prompt's choices; ids alone go with the first one there is."""
        mine = range(event.prompt * self._each, (event.prompt + 1) * self._each)
        for choice in mine:
            self._said(choice).prompt = event
        if not self._view.echo:
            return b""
        return b"".join(self._chunk(choice, event.text) for choice in mine)

    def _keep(self, choice: int, tokens: Sequence[Token], text: str | None = None, *, ended: bool = False) -> None:
        """text: what the tokens released; None where it is no part of the completion."""
        if self._counter is not None:
            self._counter.add(tokens)
        if not self._wants_tokens:
            return
        said = self._said(choice)
        said.held.extend(tokens)
        if self._vllm:
            said.scored.extend(tokens)
        elif text is not None:
            said.scored.extend(said.content.feed(text, tokens))
        elif ended:
            said.scored.extend(said.content.close())

    def _chunk(
        self, choice: int, text: str, reason: bytes = b"null", stop: str | int | None = None, extra: bytes = b""
    ) -> bytes:
        """Everything held so far goes with this text; where there is no text, it waits for the next chunk.

        extra: further fields of the chunk, each after a comma.
        """
        said = self._said(choice)
        held, said.held = said.held, []
        scored, said.scored = said.scored, []
        prompt, said.prompt = said.prompt, None
        scores = self._logprobs(said.offsets, prompt, scored)
        body = b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice, quoted(text), scores, reason, self._extensions(prompt, held, stop),
        )  # fmt: skip
        return self._envelope.chunk(body, None if self._counter is None else self._counter.usage, extra)

    def _choice(self, index: int, choice: Choice, prompt: PromptTokens | None) -> bytes:
        text = "".join(part.text for part in choice.parts if isinstance(part, Text | Refusal))
        if self._view.echo and prompt is not None:
            text = prompt.text + text
        scores = self._logprobs(self._offsets(), prompt, self._scored(choice))
        reason = finish(choice.reason, self._view.profile) + self._weights(choice)
        extensions = self._extensions(prompt, choice.tokens, choice.stop) + self._prompt_logprobs(prompt)
        return b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            index, quoted(text), scores, reason, extensions,
        )  # fmt: skip

    def _scored(self, choice: Choice) -> Sequence[Token]:
        """The tokens that `logprobs` lists: in vLLM's profile all of them, as there, else those of the text."""
        if self._vllm:
            return choice.tokens
        texts = [part for part in choice.parts if isinstance(part, Text | Refusal)]
        return content_tokens("".join(part.text for part in texts), [token for part in texts for token in part.tokens])

    def _weights(self, ended: ChoiceFinished | Choice) -> bytes:
        return weight_versions(ended.weights) if self._view.weight_versions else b""

    def _offsets(self) -> Offsets:
        view = self._view
        naming = Naming(view.tokens_as_ids)
        return Offsets(view.logprobs or 0, naming, view.special_tokens_in_text, sampled_first=self._vllm)

    def _logprobs(self, offsets: Offsets, prompt: PromptTokens | None, tokens: Sequence[Token]) -> bytes:
        if self._view.logprobs is None:
            return b"null"
        echoed = offsets.prompt(prompt) if self._view.echo and prompt is not None else []
        return completion_entries(echoed + offsets.feed(tokens))

    def _extensions(self, prompt: PromptTokens | None, tokens: Sequence[Token], stop: str | int | None) -> bytes:
        """vLLM's fields of a choice: always there in its profile, in OpenAI's only where they were asked for."""
        extra = b',"stop_reason":' + stop_reason(stop) if self._vllm else b""
        if self._view.token_ids:
            extra += b',"token_ids":' + token_ids(tokens)
            if prompt is not None:
                return extra + b',"prompt_token_ids":' + token_ids(prompt.tokens)
        elif self._vllm:
            extra += b',"token_ids":null'
        return extra + b',"prompt_token_ids":null' if self._vllm else extra

    def _prompt_logprobs(self, prompt: PromptTokens | None) -> bytes:
        if self._view.prompt_logprobs is not None and prompt is not None:
            return b',"prompt_logprobs":' + prompt_logprobs(prompt, self._view.prompt_logprobs)
        return b',"prompt_logprobs":null' if self._vllm else b""
