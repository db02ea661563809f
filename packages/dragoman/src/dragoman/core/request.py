"""The canonical request, into which dialects parse every wire format.

None in a field means that the client did not set it: the model's or the engine's
default applies.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .message import Message, Tool, ToolChoice
from .tool_results import order_tool_results
from .trace_context import SpanContext


class ReasoningOptions(Struct, frozen=True):
    """The client's options for reasoning.

    Attributes:
        enabled: whether to reason at all.
        effort: level from `none` to `max`, as the chat template defines them.
        budget: maximum reasoning tokens; the end of reasoning is forced at the
            limit.
        budget_is_hint: the client's API has no reasoning without a budget, so a model
            that cannot enforce one reasons without.
        wants_text: the client asks for the text of the reasoning, if the model reasons,
            which some upstreams send only on demand.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    budget_is_hint: bool = False
    wants_text: bool = False


class TemplateOptions(Struct, frozen=True):
    """The client's options for the chat template.

    kwargs, documents: additional variables and documents for the template, as JSON
        text.
    template: replaces the model's own template if the server allows it.
    """

    kwargs: str | None = None
    documents: str | None = None
    template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ClearToolResults(Struct, frozen=True, tag=True):
    """A context edit: replaces all but the last `keep` tool results with a placeholder.

    above_tokens: the edit applies only to prompts with more tokens than this.
    above_uses: if set, the edit applies to conversations with more tool results than
        this instead.
    at_least: minimum tokens that the edit must save.
    exclude: tools whose results are not cleared.
    inputs: tools whose call arguments are cleared too; None is all of them.
    """

    above_tokens: int
    above_uses: int | None = None
    keep: int = 0
    at_least: int = 1
    exclude: frozenset[str] = frozenset()
    inputs: frozenset[str] | None = frozenset()


class ClearReasoning(Struct, frozen=True, tag=True):
    """A context edit: removes reasoning except in the last `keep` assistant turns that
    contain any.
    """

    keep: int


Edit = ClearToolResults | ClearReasoning


class Conversation(Struct, frozen=True):
    """A chat prompt.

    Attributes:
        messages: the turns, oldest first; results of tools directly after their calls,
            see `order_tool_results`.
        tools: the tools that the client declares.
        tool_choice: those that the model may or must call.
        parallel_tool_calls: an answer may have several calls.
        reasoning: the client's options for reasoning.
        template: the client's options for the chat template.
        drop_oldest: remove whole turns from the beginning if it exceeds the context,
            instead of rejecting it.
        edits: context edits, applied in order before rendering.
        sampled_turns: ids sampled in earlier turns; their text is encoded to the same
            ids, see `prompts.token_replay`.
        preceding_ids: ids of an earlier prompt and its answer, put before the rendered
            prompt; only for token engines.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions = ReasoningOptions()
    template: TemplateOptions = TemplateOptions()
    drop_oldest: bool = False
    edits: tuple[Edit, ...] = ()
    sampled_turns: tuple[tuple[int, ...], ...] = ()
    preceding_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Here, so that no dialect can forget it and every engine and template gets it.
        msgspec.structs.force_setattr(self, "messages", order_tool_results(self.messages))


Prompt = Conversation | str | tuple[int, ...]


class AnyJsonObject(Struct, frozen=True, tag=True):
    """The answer is any JSON object.

    Attributes:
        or_array: it may also be an array, as in Google's JSON mode; upstreams whose
            APIs have only objects are asked for one.
    """

    or_array: bool = False

    @property
    def schema(self) -> str:
        return '{"type":["object","array"]}' if self.or_array else '{"type":"object"}'


class JsonSchema(Struct, frozen=True, tag=True):
    """The answer is JSON that follows a schema.

    Attributes:
        schema: a JSON Schema as JSON text.
        strict: an unsupported keyword is an error instead of a warning.
        name: the client's name of the schema.
        description: what the answer is for; only some vendors' models see it.
    """

    schema: str
    strict: bool = True
    name: str | None = None
    description: str | None = None


class Regex(Struct, frozen=True, tag=True):
    """The answer matches a regular expression.

    Attributes:
        pattern: the expression, which must match the whole answer.
    """

    pattern: str


class StringChoices(Struct, frozen=True, tag=True):
    """The answer is exactly one of these strings."""

    options: tuple[str, ...]


class ContextFreeGrammar(Struct, frozen=True, tag=True):
    """A context-free grammar in `lark` (llguidance's variant) or `gbnf` syntax."""

    definition: str
    syntax: str = "lark"


Constraint = AnyJsonObject | JsonSchema | Regex | StringChoices | ContextFreeGrammar


class Sampling(Struct, frozen=True):
    """The effective sampling parameters, all defaults resolved.

    Attributes:
        temperature: 0 is greedy.
        top_p: 1 is off.
        top_k: 0 is off.
        min_p: 0 is off.
        presence_penalty: 0 is off.
        frequency_penalty: 0 is off.
        repetition_penalty: 1 is off.
        seed: equal seeds sample equally; None is random.
        logit_bias: (token id, bias) pairs.
        allowed_token_ids: mask all other tokens.
        bad_words: token id sequences that may not be sampled.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()


def _list_set_fields(options: Struct) -> tuple[str, ...]:
    values = msgspec.structs.astuple(options)
    # A list comprehension costs less than a generator for so few fields.
    return tuple(
        [
            name
            for name, value in zip(options.__struct_fields__, values, strict=True)
            if value is not None
        ]
    )


class SamplingOptions(Struct, frozen=True):
    """The sampling parameters that the client set, with the fields of `Sampling`.

    Attributes:
        bad_words: strings, not tokenized yet.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] | None = None

    def list_set_fields(self) -> tuple[str, ...]:
        """List the names of the fields that the client set."""
        # Usually nothing is set, which one comparison in C finds out without building a
        # tuple.
        return () if self == NO_SAMPLING_OPTIONS else _list_set_fields(self)

    def resolve(self, defaults: Sampling, bad_words: tuple[tuple[int, ...], ...] = ()) -> Sampling:
        """Return the effective parameters: the client's, otherwise the default.

        Args:
            defaults: the model's parameters.
            bad_words: the client's, tokenized.
        """
        names = self.list_set_fields()
        if not names and not bad_words:
            return defaults
        overrides = {name: getattr(self, name) for name in names if name != "bad_words"}
        return msgspec.structs.replace(
            defaults, bad_words=bad_words or defaults.bad_words, **overrides
        )


NO_SAMPLING_OPTIONS = SamplingOptions()


class GenerationLimits(Struct, frozen=True):
    """The conditions under which generation stops.

    Attributes:
        max_tokens: maximum tokens of each choice; None is the rest of the context.
        min_tokens: tokens before which neither a stop string nor a stop token ends a
            choice.
        stop: stop strings, removed from the text unless include_stop.
        stop_token_ids: ids that end a choice, in addition to the model's own.
        include_stop: leave the matched stop string in the text.
        ignore_eos: the model's end-of-sequence tokens end nothing.
        truncate_prompt: keep only this many tokens at the end of the prompt; -1 keeps
            as many as fit.
        close_at_limit: spend the last tokens of a constrained answer on a legal ending;
            None is the server's default.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    truncate_prompt: int | None = None
    close_at_limit: bool | None = None


class Extras(Struct, frozen=True, omit_defaults=True):
    """Fields that only some engines have.

    An engine lists those it supports in its capabilities; others are rejected or cause
    a warning.

    Attributes:
        kv_transfer_params: JSON text of an object, passed through unchanged.
        vllm_xargs: JSON text of an object, passed through unchanged.
        lora: name of the adapter.
        reply: the scripted reply of a Scriptable engine, JSON text.
        fault: the injected fault of a Scriptable engine, JSON text.
        data_parallel_rank: index of the engine replica that must run the request.
        session_id: groups the requests of a session for a scheduler. A hint only:
            ignored without a warning.
        cache_hit_threshold: least share of the prompt that must be cached, 0 to 1; a
            request with less ends with the reason `cache_threshold`.
        cache_threshold_finish: end the request with that reason, whatever is cached.
    """

    kv_transfer_params: str | None = None
    vllm_xargs: str | None = None
    lora: str | None = None
    reply: str | None = None
    fault: str | None = None
    data_parallel_rank: int | None = None
    session_id: str | None = None
    cache_hit_threshold: float | None = None
    cache_threshold_finish: bool | None = None

    def list_set_fields(self) -> tuple[str, ...]:
        """List the names of the fields that the client set."""
        return () if self == NO_EXTRAS else _list_set_fields(self)


NO_EXTRAS = Extras()


class GenerateRequest(Struct, frozen=True):
    """One prompt and `choices` answers to it.

    Attributes:
        model: the model that the client named, or the default.
        prompt: a conversation, a text, or token ids.
        suffix: the text after the answer (fill-in-the-middle), of a prompt that is a
            text.
        choices: number of answers.
        best_of: candidates to generate, of which the `choices` most likely are
            returned; None is `choices`.
        sampling: the sampling parameters that the client set.
        limits: the conditions under which generation stops.
        constraint: the format that each answer must have.
        constraint_param: the client's field that holds the constraint, for errors and
            warnings.
        logprobs: alternatives for each token; 0 is the sampled token alone, None is no
            logprobs.
        prompt_logprobs: the same for prompt tokens.
        logprob_ids: report these tokens as the alternatives, however likely they are,
            in addition to the sampled one.
        logprob_texts: the same by the texts that are one token each at the start of
            the answer.
        return_prompt: emit PromptTokens.
        special_tokens_in_text: leave control tokens in the text (vLLM's
            skip_special_tokens=false).
        add_special_tokens: run the tokenizer's post-processor on the prompt; for a
            conversation, in addition to the special tokens of its template.
        priority: lower runs first.
        cache_salt: prefix-cache blocks are shared only between requests with equal
            salts.
        extras: fields that only some engines have.
        trace: the span of the call, the parent of an engine's spans in other servers.
    """

    model: str
    prompt: Prompt
    suffix: str | None = None
    choices: int = 1
    best_of: int | None = None
    sampling: SamplingOptions = SamplingOptions()
    limits: GenerationLimits = GenerationLimits()
    constraint: Constraint | None = None
    constraint_param: str = "response_format"
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    logprob_texts: tuple[str, ...] = ()
    return_prompt: bool = False
    special_tokens_in_text: bool = False
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    extras: Extras = Extras()
    trace: SpanContext | None = None
