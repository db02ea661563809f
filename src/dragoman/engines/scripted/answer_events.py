"""The events of one response from its script entry: all choices, delays and failures. Pure; performs no waits
itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...core.engine import Tokenizer
from ...core.events import Event, Finished, PromptTokens, Started, Usage
from ...core.message import CustomTool
from ...core.request import Conversation, GenerateRequest
from ..script.script import Fail, ScriptEntry, Wait
from ..script.validate_reply import filter_reasoning, validate_reply
from .choice_events import ChoiceEvents, ChoiceLimits, interleave
from .prompt import TokenizedPrompt
from .tokenized_text import build_prompt_token


def generate_events(
    request: GenerateRequest,
    entry: ScriptEntry,
    prompt: TokenizedPrompt,
    *,
    tokenizer: Tokenizer,
    new_id: Callable[[], str],
    max_model_len: int | None,
) -> Iterator[Event | Wait | Fail]:
    """Generate the events. Raises Unsupported first, if the entry violates the request. A Fail is the last step."""
    replies = [filter_reasoning(entry.find_reply(choice), request) for choice in range(request.choices)]
    for reply in replies:
        validate_reply(reply, request)
    if entry.delay:
        yield Wait(entry.delay)
    # Before Started, so that the request fails with the entry's status instead of in its stream.
    failure = next((reply[0] for reply in replies if reply and isinstance(reply[0], Fail)), None)
    if failure is not None:
        yield failure
        return
    usage = _build_usage(entry, len(prompt.ids), [])
    yield Started(usage.prompt, usage.cached, request.choices, written_tokens=usage.written)
    if request.return_prompt:
        yield PromptTokens(0, prompt.text, tuple(build_prompt_token(id, tokenizer) for id in prompt.ids))
    limits = _build_limits(request, None if max_model_len is None else max_model_len - len(prompt.ids))
    choices = [ChoiceEvents(choice, limits, tokenizer, entry.chunks, new_id) for choice in range(request.choices)]
    steps = [events.generate_steps(reply, entry.finish) for events, reply in zip(choices, replies, strict=True)]
    for step in interleave(steps, entry.pace):
        yield step
        if isinstance(step, Fail):
            return
    yield Finished(_build_usage(entry, len(prompt.ids), choices))


def _build_limits(request: GenerateRequest, context_left: int | None) -> ChoiceLimits:
    """Build the limits. context_left: tokens that fit into the context."""
    prompt = request.prompt if isinstance(request.prompt, Conversation) else Conversation(())
    limits = [limit for limit in (request.limits.max_tokens, context_left) if limit is not None]
    return ChoiceLimits(
        max_tokens=min(limits, default=None),
        max_reasoning=prompt.reasoning.budget,
        logprobs=request.logprobs,
        custom_tools=frozenset(tool.name for tool in prompt.tools if isinstance(tool, CustomTool)),
    )


def _build_usage(entry: ScriptEntry, prompt: int, choices: list[ChoiceEvents]) -> Usage:
    """Build the usage: real counts, except those that the script overrides. There is no cache: cached and written
    tokens are 0, not unknown.
    """
    counts = entry.usage
    completion = sum(choice.completion_tokens for choice in choices)
    reasoning = sum(choice.reasoning_tokens for choice in choices)
    return Usage(
        prompt if counts.prompt is None else counts.prompt,
        completion if counts.completion is None else counts.completion,
        0 if counts.cached is None else counts.cached,
        reasoning if counts.reasoning is None else counts.reasoning,
        written=0,
    )
