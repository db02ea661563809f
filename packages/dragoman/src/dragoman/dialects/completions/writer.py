"""Renders Completions: the chunks of a stream, the full object.

    each choice:  [echo]  text*  finish
    the stream:   the choices interleaved, [usage], [DONE] or an error

A completion has only text: reasoning and tool calls, which only an `Engine` can
separate from it, are omitted; their tokens are counted and listed like all others.
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
from ..chunk_envelope import (
    ChunkEnvelope,
    ChunkWriter,
    RenderOptions,
    render_finish_reason,
)
from ..interfaces import Header, Profile
from ..json_encoding import encode_field, encode_string
from ..logprobs import (
    CompletionLogprobBuilder,
    TokenNaming,
    render_completion_logprobs,
    render_prompt_logprobs,
    render_token_ids,
)
from ..token_alignment import ContentTokens, content_tokens
from ..token_usage import UsageCounter
from ..vllm_response_fields import (
    render_kv_transfer,
    render_metrics,
    render_stop_reason,
    render_weight_versions,
)

KINDS = (b"text_completion", b"text_completion")
"""The `object` of a chunk and of a full response."""


class CompletionsRenderOptions(RenderOptions, frozen=True, kw_only=True):
    """The response options of Completions.

    echo: return the prompt too.
    special_tokens_in_text: control tokens are part of the text and of its offsets.
    """

    echo: bool = False
    special_tokens_in_text: bool = False


DEFAULT_OPTIONS = CompletionsRenderOptions()


class _ChoiceState:
    """The state of one streamed choice.

    offsets: builder of the logprobs, which tracks the offset of each token in the text.
    pending_tokens: tokens that no chunk has carried yet.
    scored: tokens of the next chunk that `logprobs` lists.
    prompt: the prompt, until a chunk has carried it.
    """

    __slots__ = ("content", "offsets", "pending_tokens", "prompt", "scored")

    def __init__(self, offsets: CompletionLogprobBuilder) -> None:
        self.offsets = offsets
        self.content = ContentTokens()
        self.pending_tokens: list[Token] = []
        self.scored: list[Token] = []
        self.prompt: PromptTokens | None = None


class CompletionsWriter(ChunkWriter):
    """Renders one answer, streamed or full."""

    __slots__ = (
        "_choices",
        "_choices_per_prompt",
        "_chunk_end",
        "_chunk_starts",
        "_counter",
        "_is_plain",
        "_is_vllm",
        "_lists_all_tokens",
        "_options",
        "_wants_tokens",
    )

    def __init__(self, header: Header, options: CompletionsRenderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._envelope = ChunkEnvelope(header, options, KINDS)
        self._is_vllm = options.profile is Profile.VLLM
        # OpenAI lists only the tokens of the text. Clients that score texts (lm-eval)
        # send `echo` with one token to generate and drop the last entry, even if it is
        # end-of-sequence. Those that request ids (TRL, AReaL) pair each with its
        # logprob.
        self._lists_all_tokens = (
            self._is_vllm or options.echo or options.token_ids or options.tokens_as_ids
        )
        self._wants_tokens = options.token_ids or options.logprobs is not None
        self._is_plain = not (self._wants_tokens or options.continuous_usage)
        self._choices_per_prompt = 1
        self._choices: dict[int, _ChoiceState] = {}
        self._chunk_starts: tuple[bytes, ...] = ()
        self._chunk_end = b""
        self._counter = UsageCounter() if options.continuous_usage else None

    def feed(self, event: Event) -> bytes:  # noqa: PLR0911 - a table
        if self._is_plain and type(event) is TextDelta:
            # The hot path, taken for nearly every token: one lookup, one escape, one
            # concatenation.
            prefix = self._envelope.chunk_prefix
            start = self._chunk_starts[event.choice]
            return (
                b"".join((prefix, start, encode_string(event.text), self._chunk_end))
                if event.text
                else b""
            )
        match event:
            case TextDelta(choice, text, tokens) | RefusalDelta(choice, text, tokens):
                self._buffer_tokens(choice, tokens, text)
                return self._render_chunk(choice, text) if text else b""
            case ReasoningDelta() | ToolCallStart() | ToolCallDelta():
                self._buffer_tokens(event.choice, event.tokens)
                return b""
            case ChoiceFinished():
                self._buffer_tokens(event.choice, event.tokens, ended=True)
                transfer = encode_field("kv_transfer_params", event.kv_transfer_params)
                reason = render_finish_reason(
                    event.reason, self._options.profile
                ) + self._render_weights(event)
                return self._render_chunk(event.choice, "", reason, event.stop, transfer)
            case PromptTokens():
                return self._echo_prompt(event)
            case Started():
                self._envelope.begin_stream()
                self._chunk_starts = tuple(
                    [b'{"index":%d,"text":' % i for i in range(event.choices)]
                )
                extensions = self._render_extensions(None, (), None)
                self._chunk_end = b',"logprobs":null,"finish_reason":null%s}%s' % (
                    extensions, self._envelope.chunk_suffix,
                )  # fmt: skip
                # OpenAI numbers the choices of all prompts consecutively: n of the
                # first prompt, then n of the second.
                self._choices_per_prompt = event.choices // event.prompts
                if self._counter is not None:
                    self._counter = UsageCounter(event)
                return b""
            case Finished():
                return self._envelope.render_usage_chunk(event)

    def render_full(self, reply: Reply) -> bytes:
        options = self._options
        choices = list[bytes]()
        choices_per_prompt = len(reply.choices) // max(1, len(reply.prompts))
        for i, choice in enumerate(reply.choices):
            prompt = reply.prompts[i // choices_per_prompt] if reply.prompts else None
            parts = [part for part in choice.parts if isinstance(part, Text | Refusal)]
            text = "".join(part.text for part in parts)
            scored = choice.tokens
            if not self._lists_all_tokens:
                scored = content_tokens(text, [token for part in parts for token in part.tokens])
            if options.echo and prompt is not None:
                text = prompt.text + text
            logprobs = self._render_logprobs(self._create_offsets(), prompt, scored)
            reason = render_finish_reason(choice.reason, options.profile) + self._render_weights(
                choice
            )
            extensions = self._render_extensions(prompt, choice.tokens, choice.stop)
            if options.prompt_logprobs is not None and prompt is not None:
                extensions += b',"prompt_logprobs":' + render_prompt_logprobs(
                    prompt, options.prompt_logprobs
                )
            elif self._is_vllm:
                extensions += b',"prompt_logprobs":null'
            choices.append(
                b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}'
                % (i, encode_string(text), logprobs, reason, extensions)
            )
        extra = render_kv_transfer(reply.kv_transfer_params, options.profile)
        return self._envelope.render_object(
            b",".join(choices), reply.usage, extra + render_metrics(reply.usage, reply.timings)
        )

    def _get_state(self, choice: int) -> _ChoiceState:
        """Return the state of a choice, which is created lazily: most choices never
        need one.
        """
        state = self._choices.get(choice)
        if state is None:
            state = self._choices[choice] = _ChoiceState(self._create_offsets())
        return state

    def _echo_prompt(self, event: PromptTokens) -> bytes:
        """Echo the prompt in the first chunk of each of its choices. Without echo, its
        ids are in the next chunk.
        """
        choices = range(
            event.prompt * self._choices_per_prompt, (event.prompt + 1) * self._choices_per_prompt
        )
        for choice in choices:
            self._get_state(choice).prompt = event
        if not self._options.echo:
            return b""
        return b"".join(self._render_chunk(choice, event.text) for choice in choices)

    def _buffer_tokens(
        self, choice: int, tokens: Sequence[Token], text: str | None = None, *, ended: bool = False
    ) -> None:
        """Buffer tokens for the next chunk.

        text: the text that the tokens released; None if it is not part of the
            completion.
        """
        if self._counter is not None:
            self._counter.add(tokens, has_output=not ended)
        if not self._wants_tokens:
            return
        state = self._get_state(choice)
        state.pending_tokens.extend(tokens)
        if self._lists_all_tokens:
            state.scored.extend(tokens)
        # OpenAI lists only the tokens of the text; one that released no text yet is
        # held until its text, or the end.
        elif text is not None:
            state.scored.extend(state.content.feed(text, tokens))
        elif ended:
            state.scored.extend(state.content.close())

    def _render_chunk(
        self,
        choice: int,
        text: str,
        reason: bytes = b"null",
        stop: str | int | None = None,
        extra: bytes = b"",
    ) -> bytes:
        """Render a chunk with this text and all pending tokens.

        extra: additional fields of the chunk, each after a comma.
        """
        state = self._get_state(choice)
        tokens = state.pending_tokens
        state.pending_tokens = []
        scored = state.scored
        state.scored = []
        # The prompt's logprobs belong to the first chunk only.
        prompt = state.prompt
        state.prompt = None
        logprobs = self._render_logprobs(state.offsets, prompt, scored)
        body = b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice, encode_string(text), logprobs, reason, self._render_extensions(prompt, tokens,
            stop),
        )  # fmt: skip
        return self._envelope.render_chunk(
            body, None if self._counter is None else self._counter.usage, extra
        )

    def _render_weights(self, choice: ChoiceFinished | Choice) -> bytes:
        return render_weight_versions(choice.weights) if self._options.weight_versions else b""

    def _create_offsets(self) -> CompletionLogprobBuilder:
        options = self._options
        naming = TokenNaming(options.tokens_as_ids)
        return CompletionLogprobBuilder(
            options.logprobs or 0,
            naming,
            options.special_tokens_in_text,
            sampled_first=self._is_vllm,
        )

    def _render_logprobs(
        self,
        offsets: CompletionLogprobBuilder,
        prompt: PromptTokens | None,
        tokens: Sequence[Token],
    ) -> bytes:
        if self._options.logprobs is None:
            return b"null"
        prompt_rows = (
            offsets.add_prompt(prompt) if self._options.echo and prompt is not None else []
        )
        return render_completion_logprobs(prompt_rows + offsets.add_tokens(tokens))

    def _render_extensions(
        self, prompt: PromptTokens | None, tokens: Sequence[Token], stop: str | int | None
    ) -> bytes:
        """Render vLLM's fields of a choice: all of them in vLLM's profile, in OpenAI's
        only if requested.
        """
        extra = b',"stop_reason":' + render_stop_reason(stop) if self._is_vllm else b""
        if self._options.token_ids:
            extra += b',"token_ids":' + render_token_ids(tokens)
            if prompt is not None:
                return extra + b',"prompt_token_ids":' + render_token_ids(prompt.tokens)
        elif self._is_vllm:
            extra += b',"token_ids":null'
        return extra + b',"prompt_token_ids":null' if self._is_vllm else extra
