"""The sampling parameters of a response: the request's, merged with the model's
defaults.
"""

from __future__ import annotations

from ..core.errors import Unsupported
from ..core.message import Tool
from ..core.request import Conversation, GenerateRequest, Sampling
from ..core.request_checks import check_ids
from ..core.syntax import (
    ReasoningSyntax,
)
from ..core.token_engine import ReasoningBudget
from .engine_backends import TokenBackend
from .served_model import ServedModel


def find_callable_tools(request: GenerateRequest) -> tuple[Tool, ...]:
    """Return the tools that this response may call."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or prompt.tool_choice.mode == "none":
        return ()
    names = prompt.tool_choice.names
    return (
        prompt.tools
        if names is None
        else tuple(tool for tool in prompt.tools if tool.name in names)
    )


def build_sampling(
    model: ServedModel, backend: TokenBackend, request: GenerateRequest, tools: tuple[Tool, ...]
) -> Sampling:
    """Merge the request's sampling with the model's defaults. Raises RequestError for
    ids outside the vocabulary.

    tools: those that the response may call.
    """
    options = request.sampling
    vocab_size = backend.tokenizer.vocab_size
    if options.logit_bias:
        check_ids([id for id, _ in options.logit_bias], vocab_size, "logit_bias")
    if options.allowed_token_ids:
        check_ids(options.allowed_token_ids, vocab_size, "allowed_token_ids")
    if request.limits.stop_token_ids:
        check_ids(request.limits.stop_token_ids, vocab_size, "stop_token_ids")
    banned: tuple[tuple[int, ...], ...] = ()
    for word in options.bad_words or ():
        # A word may start a text or follow a space; both token sequences are banned, as
        # in vLLM.
        encodings = {
            tuple(backend.tokenizer.encode(prefix + word.lstrip(), special=False))
            for prefix in ("", " ")
        }
        banned += tuple(encodings - {()})
    # If no tool may be called, the tokens that open a call are banned. This enforces
    # tool_choice `none`.
    if model.parser_tokens.call_openers and isinstance(request.prompt, Conversation) and not tools:
        banned += model.parser_tokens.call_openers
    return options.resolve(model.defaults.sampling, banned)


def build_reasoning_budget(
    model: ServedModel, backend: TokenBackend, max_tokens: int, prompt_tail: str
) -> ReasoningBudget:
    """Build the reasoning budget of a request. Raises Unsupported for a model without
    reasoning.
    """
    if model.formats.reasoning is None:
        raise Unsupported(
            "This model does not support reasoning, so it has no reasoning to limit.",
            param="thinking_token_budget",
        )
    syntax = model.formats.reasoning.syntax
    begin, end = (
        tuple(backend.tokenizer.encode(marker, special=True))
        for marker in (syntax.begin, syntax.end)
    )
    return ReasoningBudget(max_tokens, begin, end, end, ends_in_reasoning(syntax, prompt_tail))


def ends_in_reasoning(syntax: ReasoningSyntax, prompt_tail: str) -> bool:
    """Whether the prompt ends inside reasoning."""
    return prompt_tail.rfind(syntax.begin) > prompt_tail.rfind(syntax.end)
