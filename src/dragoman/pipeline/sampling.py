"""Builds the sampling parameters: the request's over the model's defaults, checked against the vocabulary."""

from __future__ import annotations

from ..core.engine import ReasoningBudget, check_ids
from ..core.errors import Unsupported
from ..core.message import Tool
from ..core.request import Conversation, GenerateRequest, Sampling
from ..core.syntax import ReasoningSyntax
from .models import ServedModel, TokenBackend


def find_callable_tools(request: GenerateRequest) -> tuple[Tool, ...]:
    """The tools that this response may call."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or prompt.tool_choice.mode == "none":
        return ()
    names = prompt.tool_choice.names
    return prompt.tools if names is None else tuple(tool for tool in prompt.tools if tool.name in names)


def build_sampling(model: ServedModel, backend: TokenBackend, request: GenerateRequest) -> Sampling:
    """The effective sampling. Raises RequestError for ids outside the vocabulary."""
    options = request.sampling
    vocab_size = backend.tokenizer.vocab_size
    check_ids([id for id, _ in options.logit_bias or ()], vocab_size, "logit_bias")
    check_ids(options.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    check_ids(request.limits.stop_token_ids, vocab_size, "stop_token_ids")
    banned_sequences = [ids for word in options.bad_words or () for ids in _encode_bad_word(backend, word)]
    return options.resolve(model.sampling, (*banned_sequences, *_find_banned_openers(model, backend, request)))


def _encode_bad_word(backend: TokenBackend, word: str) -> set[tuple[int, ...]]:
    """A word may start a text or follow a space; both token sequences are banned, as in vLLM."""
    encodings = {tuple(backend.tokenizer.encode(prefix + word.lstrip(), special=False)) for prefix in ("", " ")}
    return encodings - {()}


def _find_banned_openers(model: ServedModel, backend: TokenBackend, request: GenerateRequest) -> list[tuple[int]]:
    """The tokens that open a call, banned where no tool may be called: this enforces tool_choice `none`."""
    if model.tools is None or not isinstance(request.prompt, Conversation) or find_callable_tools(request):
        return []
    special = backend.tokenizer.special_tokens
    return [(special[marker],) for marker in model.tools.call_openers if marker in special]


def build_reasoning_budget(
    model: ServedModel, backend: TokenBackend, request: GenerateRequest, prompt_tail: str
) -> ReasoningBudget | None:
    """The budget of reasoning tokens, where the request sets one. Raises Unsupported for a model without reasoning."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or prompt.reasoning.budget is None:
        return None
    if model.reasoning is None:
        raise Unsupported(
            "This model does not support reasoning, so it has no reasoning to limit.", param="thinking_token_budget"
        )
    syntax = model.reasoning.syntax
    begin, end = (tuple(backend.tokenizer.encode(marker, special=True)) for marker in (syntax.begin, syntax.end))
    return ReasoningBudget(prompt.reasoning.budget, begin, end, end, ends_in_reasoning(syntax, prompt_tail))


def ends_in_reasoning(syntax: ReasoningSyntax, prompt_tail: str) -> bool:
    """Whether the prompt ends inside reasoning."""
    return prompt_tail.rfind(syntax.begin) > prompt_tail.rfind(syntax.end)
