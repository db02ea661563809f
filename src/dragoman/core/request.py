"""The canonical request: what a dialect asks of an engine, whatever the wire said.

Where a field is None the client said nothing about it, and the model's or the engine's default holds.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .message import Message, Tool, ToolChoice


class ReasoningOptions(Struct, frozen=True):
    """enabled: whether to think at all. effort: none ... max, as the template knows it.

    budget: most tokens of reasoning; the end of the thought is forced when it is used up.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None


class TemplateOptions(Struct, frozen=True):
    """What a client may tell the chat template.

    kwargs and documents are JSON text; template replaces the model's own where the server allows it.
    """

    kwargs: str | None = None
    documents: str | None = None
    template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ClearToolResults(Struct, frozen=True, tag=True):
    """Of tools' results all but the last `keep` give way to a placeholder, once the prompt has more tokens than
    `above_tokens`, or, where that is told, the conversation more results than `above_uses`.

    at_least: tokens that must be saved by it. exclude: tools whose results stay. inputs: tools whose calls are cleared
    with their results; None is all of them.
    """

    above_tokens: int
    above_uses: int | None = None
    keep: int = 0
    at_least: int = 1
    exclude: frozenset[str] = frozenset()
    inputs: frozenset[str] | None = frozenset()


class ClearReasoning(Struct, frozen=True, tag=True):
    """What was thought is left out, save in the last `keep` turns of the assistant in which it thought."""

    keep: int


Edit = ClearToolResults | ClearReasoning


class Conversation(Struct, frozen=True):
    """drop_oldest: where it does not fit the context, whole turns are left out, rather than all of it refused.

    edits: what of it may be cleared before it is rendered, one after the other.
    said: ids that were sampled in earlier turns, see `prompts.spelling`: what they spell is spelled so again.
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


Prompt = Conversation | str | tuple[int, ...]


class JsonObject(Struct, frozen=True, tag=True):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, tag=True):
    """schema: JSON text. strict: an unsupported keyword is an error rather than a warning."""

    schema: str
    strict: bool = True
    name: str | None = None


class Regex(Struct, frozen=True, tag=True):
    pattern: str


class StringChoices(Struct, frozen=True, tag=True):
    """One of these strings, exactly."""

    options: tuple[str, ...]


class ContextFreeGrammar(Struct, frozen=True, tag=True):
    """A context-free grammar in `lark` (llguidance's dialect of it) or `gbnf` syntax."""

    definition: str
    syntax: str = "lark"


Constraint = JsonObject | JsonSchema | Regex | StringChoices | ContextFreeGrammar


class Sampling(Struct, frozen=True):
    """How to choose the next token; every field has its effective value.

    temperature: 0 is greedy. top_k: 0 is off. min_p: 0 is off. repetition_penalty: 1 is off.
    seed: same seed, same choices; None draws afresh. logit_bias: (token id, bias) pairs.
    allowed_token_ids: nothing else may be sampled. bad_words: sequences of ids that may not appear.
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


class SamplingOptions(Struct, frozen=True):
    """What the client said about sampling; see `Sampling` for the meanings. bad_words are texts here."""

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
        """Names of the fields that the client set."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    def resolve(self, defaults: Sampling, bad_words: tuple[tuple[int, ...], ...] = ()) -> Sampling:
        """The effective values: what was said, else the default. bad_words arrive tokenised."""
        overrides = {name: getattr(self, name) for name in self.list_set_fields() if name != "bad_words"}
        return msgspec.structs.replace(defaults, bad_words=bad_words or defaults.bad_words, **overrides)


class GenerationLimits(Struct, frozen=True):
    """Where an answer ends.

    max_tokens: of each choice; None is the rest of the context. stop: strings, removed from the text unless
    include_stop. truncate_prompt: keep only the last so many prompt tokens; -1 is what fits.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    truncate_prompt: int | None = None


class Extras(Struct, frozen=True):
    """Things that only some engines know, passed to them untouched. Values are JSON text.

    An engine names in its capabilities the ones it honours; the others are refused or warned about.
    reply, fault: what an engine that can be told is to say, or how it is to fail.
    data_parallel_rank: the number of the engine's copy that shall take it.
    """

    kv_transfer_params: str | None = None
    vllm_xargs: str | None = None
    lora: str | None = None
    reply: str | None = None
    fault: str | None = None
    data_parallel_rank: str | None = None

    def list_items(self) -> tuple[tuple[str, str], ...]:
        """(name, JSON text) of what the client set."""
        return tuple((name, value) for name in self.__struct_fields__ if (value := getattr(self, name)) is not None)


class GenerateRequest(Struct, frozen=True):
    """One prompt, `choices` answers.

    best_of: how many candidates to generate, of which the `choices` most likely are kept; None is `choices`.
    logprobs: how many alternatives a token shall carry; 0 is the sampled token alone, None is no logprobs.
    prompt_logprobs: the same for the prompt's tokens. return_prompt: emit PromptTokens.
    special_tokens_in_text: leave control tokens in the text (vLLM's skip_special_tokens=false).
    add_special_tokens: begin a prompt as the tokenizer's own post-processor would; a conversation too, on top of what
    its template writes.
    priority: lower runs first. cache_salt: prefix-cache blocks are shared only among equal salts.
    """

    model: str
    prompt: Prompt
    choices: int = 1
    best_of: int | None = None
    sampling: SamplingOptions = SamplingOptions()
    limits: GenerationLimits = GenerationLimits()
    constraint: Constraint | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_prompt: bool = False
    special_tokens_in_text: bool = False
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    extras: Extras = Extras()
