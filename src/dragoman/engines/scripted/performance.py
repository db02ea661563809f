"""One answer from its entry: the events of all choices, and where to wait or to fail. Pure; it knows no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...core.engine import Tokenizer
from ...core.events import Event, Finished, PromptTokens, Started, Usage
from ...core.message import CustomTool
from ...core.request import Conversation, GenerateRequest
from ..script.obey import check, wanted
from ..script.script import Entry, Fail, Wait
from .prompt import Prompt
from .speech import Rules, Speech, together
from .spelling import token_of


def perform(
    request: GenerateRequest,
    entry: Entry,
    prompt: Prompt,
    *,
    tokenizer: Tokenizer,
    new_id: Callable[[], str],
    max_model_len: int | None,
) -> Iterator[Event | Wait | Fail]:
    """Raises Unsupported, before anything else, if the entry is no answer to this request. A Fail is the last step."""
    replies = [wanted(entry.for_choice(choice), request) for choice in range(request.choices)]
    for reply in replies:
        check(reply, request)
    if entry.delay:
        yield Wait(entry.delay)
    refusal = next((reply[0] for reply in replies if reply and isinstance(reply[0], Fail)), None)
    if refusal is not None:
        yield refusal
        return
    usage = _usage(entry, len(prompt.ids), [])
    yield Started(usage.prompt, usage.cached, request.choices)
    if request.return_prompt:
        yield PromptTokens(0, prompt.text, tuple(token_of(id, tokenizer) for id in prompt.ids))
    rules = _rules(request, None if max_model_len is None else max_model_len - len(prompt.ids))
    speeches = [Speech(choice, rules, tokenizer, entry.chunks, new_id) for choice in range(request.choices)]
    steps = [speech.steps(reply, entry.finish) for speech, reply in zip(speeches, replies, strict=True)]
    for step in together(steps, entry.pace):
        yield step
        if isinstance(step, Fail):
            return
    yield Finished(_usage(entry, len(prompt.ids), speeches))


def _rules(request: GenerateRequest, left: int | None) -> Rules:
    """left: tokens that the context has room for."""
    prompt = request.prompt if isinstance(request.prompt, Conversation) else Conversation(())
    asked = [limit for limit in (request.limits.max_tokens, left) if limit is not None]
    return Rules(
        max_tokens=min(asked, default=None),
        max_reasoning=prompt.reasoning.budget,
        logprobs=request.logprobs,
        custom=frozenset(tool.name for tool in prompt.tools if isinstance(tool, CustomTool)),
    )


def _usage(entry: Entry, prompt: int, speeches: list[Speech]) -> Usage:
    """True counts, but for those that the script replaces. Nothing is ever cached here: that is 0, not unknown."""
    counts = entry.usage
    completion = sum(speech.completion for speech in speeches)
    reasoning = sum(speech.reasoning for speech in speeches)
    return Usage(
        prompt if counts.prompt is None else counts.prompt,
        completion if counts.completion is None else counts.completion,
        0 if counts.cached is None else counts.cached,
        reasoning if counts.reasoning is None else counts.reasoning,
    )
