"""Replacement of a reasoning budget that the model cannot enforce."""

from __future__ import annotations

import msgspec

from ..core.capabilities import Feature
from ..core.errors import Unsupported
from ..core.request import Conversation, GenerateRequest
from .call_terms import CallTerms
from .engine_backends import TokenBackend
from .served_model import ServedModel

_EFFORTS = ((4_096, "low"), (16_384, "medium"))
"""Efforts by the smallest budget that is too large for them; larger ones are `high`.
Claude Code's budgets are 4,000, 10,000 and 31,999.
"""
_PARAM = "thinking_token_budget"


def replace_budget_hint(
    model: ServedModel, request: GenerateRequest, terms: CallTerms
) -> tuple[GenerateRequest, tuple[str, ...]]:
    """Replace the budget of a request whose client only asked for reasoning, if the model
    cannot enforce it: with an effort for an engine that has efforts.

    Return the request, and warnings for the client.

    Raises:
        Unsupported: the budget cannot be enforced, and the server is strict.
    """
    prompt = request.prompt
    if not isinstance(prompt, Conversation) or not prompt.reasoning.budget_is_hint:
        return request, ()
    reasoning = prompt.reasoning
    if reasoning.budget is None or _enforces_budgets(model):
        return request, ()
    if terms.is_strict:
        raise Unsupported("This model's engine does not support reasoning budgets.", param=_PARAM)
    effort = reasoning.effort
    warning = f"{_PARAM} is ignored: this model's engine has no reasoning budgets"
    if (
        effort is None
        and reasoning.enabled is not False
        # Engines that render prompts here get the template's switch, which says as much.
        and not isinstance(model.backend, TokenBackend)
        and "reasoning_effort" in model.capabilities.parameters
    ):
        effort = next((name for limit, name in _EFFORTS if reasoning.budget < limit), "high")
        warning += f"; the reasoning effort is {effort}"
    reasoning = msgspec.structs.replace(reasoning, effort=effort, budget=None, budget_is_hint=False)
    prompt = msgspec.structs.replace(prompt, reasoning=reasoning)
    return msgspec.structs.replace(request, prompt=prompt), (warning,)


def _enforces_budgets(model: ServedModel) -> bool:
    if Feature.REASONING_BUDGET not in model.capabilities.features:
        return False
    return not isinstance(model.backend, TokenBackend) or model.formats.reasoning is not None
