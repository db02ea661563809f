"""What a model makes of the fields of requests, kept for the next request with the same
fields.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from ..core.capabilities import Capabilities
from ..core.message import Tool
from ..core.request import Conversation, Extras, GenerateRequest, Sampling
from ..core.sized_cache import SizedCache
from .call_terms import CallTerms
from .capability_checks import FieldSupport

MAX_CACHED_BYTES = 1024 * 1024
"""The size of the cache, in bytes of the fields as JSON: an entry takes several times as
much.
"""
ENTRY_BYTES = 256
"""The overhead of an entry, in bytes."""


class RequestPlan:
    """What a model makes of the fields of a request besides its prompt.

    capabilities: those of the engine, for which the plan was made.
    support: the engine's support of the fields.
    tools: the tools that the answer may call.
    sampling, extras: those of the engine's requests; None until a prompt has been
        encoded, whose errors come first.
    """

    __slots__ = ("capabilities", "extras", "sampling", "support", "tools")

    def __init__(
        self, capabilities: Capabilities, support: FieldSupport, tools: tuple[Tool, ...]
    ) -> None:
        self.capabilities = capabilities
        self.support = support
        self.tools = tools
        self.sampling: Sampling | None = None
        self.extras: Extras | None = None


class RequestPlans:
    """A cache of one model's plans, since an application sends the same fields with
    every request.
    """

    def __init__(self) -> None:
        self._plans: SizedCache[Hashable, RequestPlan] = SizedCache(
            MAX_CACHED_BYTES, max_entry_size=MAX_CACHED_BYTES // 8, overhead=ENTRY_BYTES
        )

    def find(self, key: Hashable, capabilities: Capabilities) -> RequestPlan | None:
        """Return the plan that was made for these capabilities, which may change while
        the model is served.
        """
        plan = self._plans.find(key)
        if plan is None or plan.capabilities is capabilities or plan.capabilities == capabilities:
            return plan
        return None

    def add(self, key: Hashable, plan: RequestPlan) -> None:
        self._plans.add(key, plan, len(msgspec.json.encode(key)))


def build_plan_key(request: GenerateRequest, terms: CallTerms) -> Hashable:
    """Return all that a plan is made of besides its model. It contains the owner, so
    that the latency of a request reveals nothing about the requests of others.
    """
    prompt = request.prompt
    limits = request.limits
    if isinstance(prompt, Conversation):
        template = prompt.template
        prompt_key: Hashable = (
            prompt.tools,
            prompt.tool_choice,
            prompt.reasoning,
            template.kwargs is None,
            template.documents is None,
        )
    else:
        prompt_key = isinstance(prompt, str)
    return (
        terms.cache_salt,
        terms.is_background,
        prompt_key,
        request.suffix is None,
        request.choices,
        request.best_of,
        request.sampling,
        # All but `max_tokens`, which the prompt's length may reduce.
        limits.min_tokens,
        limits.stop,
        limits.stop_token_ids,
        limits.include_stop,
        limits.ignore_eos,
        limits.truncate_prompt,
        limits.close_at_limit,
        request.constraint,
        request.constraint_param,
        request.logprobs,
        request.prompt_logprobs,
        request.logprob_ids,
        request.add_special_tokens,
        request.priority,
        request.cache_salt,
        request.extras,
    )
