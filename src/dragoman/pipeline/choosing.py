"""How the next token is chosen: what was asked for over the model's defaults, checked against its vocabulary."""

from __future__ import annotations

from ..core.engine import ThoughtLimit
from ..core.errors import Unsupported
from ..core.message import Tool
from ..core.request import Conversation, GenerateRequest, Sampling
from ..core.syntax import ThoughtSyntax
from .models import ServedModel, TokenBackend
from .prompting import check_ids


def callable_tools(request: GenerateRequest) -> tuple[Tool, ...]:
    """The tools that this answer may call."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or prompt.tool_choice.mode == "none":
        return ()
    names = prompt.tool_choice.names
    return prompt.tools if names is None else tuple(tool for tool in prompt.tools if tool.name in names)


def sampling_of(model: ServedModel, backend: TokenBackend, request: GenerateRequest) -> Sampling:
    """The effective sampling. Raises RequestError for ids outside the vocabulary."""
    options = request.sampling
    check_ids(backend, tuple(id for id, _ in options.logit_bias or ()), "logit_bias")
    check_ids(backend, options.allowed_token_ids or (), "allowed_token_ids")
    check_ids(backend, request.limits.stop_token_ids, "stop_token_ids")
    banned = [ids for word in options.bad_words or () for ids in _spellings(backend, word)]
    return options.over(model.sampling, (*banned, *_silent_openers(model, backend, request)))


def _spellings(backend: TokenBackend, word: str) -> set[tuple[int, ...]]:
    """A word begins a text or stands behind a space; as in vLLM, both are banned."""
    spelled = {tuple(backend.tokenizer.encode(prefix + word.lstrip(), special=False)) for prefix in ("", " ")}
    return spelled - {()}


def _silent_openers(model: ServedModel, backend: TokenBackend, request: GenerateRequest) -> list[tuple[int]]:
    """Where no tool may be called no call may begin either: tool_choice none is enforced, not hoped for."""
    if model.tools is None or not isinstance(request.prompt, Conversation) or callable_tools(request):
        return []
    special = backend.tokenizer.special_tokens
    return [(special[mark],) for mark in model.tools.openers if mark in special]


def thought_limit(
    model: ServedModel, backend: TokenBackend, request: GenerateRequest, tail: str
) -> ThoughtLimit | None:
    """The budget of reasoning tokens, where one was given. Raises Unsupported for a model that does not reason."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or prompt.reasoning.budget is None:
        return None
    if model.reasoning is None:
        raise Unsupported(
            "This model does not support reasoning, so it has no reasoning to limit.", param="thinking_token_budget"
        )
    syntax = model.reasoning.thought
    begin, end = (tuple(backend.tokenizer.encode(mark, special=True)) for mark in (syntax.begin, syntax.end))
    return ThoughtLimit(prompt.reasoning.budget, begin, end, end, opened(syntax, tail))


def opened(syntax: ThoughtSyntax, tail: str) -> bool:
    """Whether the prompt ends within a thought."""
    return tail.rfind(syntax.begin) > tail.rfind(syntax.end)
