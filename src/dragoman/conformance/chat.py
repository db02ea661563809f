"""The wire grammar of Chat Completions, for the streams and objects of any server.

each choice:  role  (content | refusal | reasoning | tool deltas)*  finish
the stream:   choices interleaved, roles in index order; then [usage]; then [DONE], unless an error came
"""

from __future__ import annotations

from . import shapes
from .chunks import ChunkState
from .violation import Json, a_count, a_key, a_text, an_array, an_object, must, objects

REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
REASONING = frozenset({"reasoning", "reasoning_content"})
FIELDS = frozenset({"role", "content", "refusal", "tool_calls", "function_call"}) | REASONING


def check_stream(data: bytes, *, include_usage: bool, extra_reasons: tuple[str, ...] = ()) -> list[Json]:
    """The chunks, if they keep the rules. include_usage: what the request asked for. Raises Violation."""
    return _State(include_usage, (*REASONS, *extra_reasons)).read(data)


class _Choice:
    """Where one choice of the stream is. silent: nothing was told yet, not even that the content is empty."""

    def __init__(self, *, silent: bool) -> None:
        self.calls = 0
        self.legacy_calls = 0
        self.finished = False
        self.silent = silent


class _State(ChunkState):
    kind = "chat.completion.chunk"

    def __init__(self, include_usage: bool, reasons: tuple[str, ...]) -> None:
        super().__init__(include_usage, reasons)
        self._choices: list[_Choice] = []

    @property
    def _ended(self) -> bool:
        return bool(self._choices) and all(choice.finished for choice in self._choices)

    def _choice(self, choice: Json) -> None:
        index, delta = a_count(choice.get("index"), "index"), an_object(choice.get("delta"), "delta")
        at, reason = f"choice {index}", choice.get("finish_reason")
        a_key(choice, "finish_reason", at)
        shapes.chat_logprobs(choice.get("logprobs"), f"{at}.logprobs")
        if index >= len(self._choices):
            must(index == len(self._choices), f"{at} begins before choice {len(self._choices)}")
            must(delta.get("role") == "assistant", f"{at}: the first delta has no role")
            must(
                delta.keys() <= {"role", "content"} and not delta.get("content"), f"{at}: begins with more than a role"
            )
            self._choices.append(_Choice(silent="content" not in delta))
            delta = {}
        elif reason is None:
            if delta != {"content": ""} or not self._choices[index].silent:
                _check_delta(delta, at)
            self._choices[index].silent = False
        state = self._choices[index]
        must(not state.finished, f"{at}: a chunk after finish_reason")
        _check_calls(state, delta, at)
        if reason is not None:
            must(reason in self._reasons, f"{at}: finish_reason is {reason!r}")
            must(not delta, f"{at}: the last delta is not empty")
            must(reason != "tool_calls" or state.calls > 0, f"{at}: tool_calls without a call")
            state.finished = True


def _check_delta(delta: Json, at: str) -> None:
    must(delta.keys() <= FIELDS, f"{at}: unknown fields in {sorted(delta)}")
    must("role" not in delta, f"{at}: the role again")
    must(all(value not in (None, "", []) for value in delta.values()), f"{at}: an empty field in {delta}")
    fields = {"reasoning" if field in REASONING else field for field in delta}
    must(len(fields) == 1, f"{at}: one field a delta, not {sorted(delta)}")
    must(len({delta[field] for field in REASONING & delta.keys()}) <= 1, f"{at}: the names of the reasoning differ")


def _check_calls(choice: _Choice, delta: Json, at: str) -> None:
    for call in objects(delta.get("tool_calls", []), f"{at}.tool_calls"):
        _check_call(choice, call, at)
    if "function_call" in delta:
        choice.legacy_calls += "name" in an_object(delta["function_call"], f"{at}.function_call")
        must(choice.legacy_calls == 1, f"{at}: function_call named {choice.legacy_calls} times")


def _check_call(choice: _Choice, call: Json, at: str) -> None:
    index = a_count(call.get("index"), f"{at}: index of a call")
    kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
    body = an_object(call.get(kind), f"{at}: {kind} of call {index}")
    if index == choice.calls:
        must(call.get("id") and call.get("type") == kind and body.get("name"), f"{at}: a call without id, type or name")
        choice.calls += 1
        return
    must(index == choice.calls - 1, f"{at}: a delta of call {index}, open is {choice.calls - 1}")
    must(call.keys() == {"index", kind} and body.keys() == {text}, f"{at}: id, type or name again in {call}")


def check_object(whole: Json, *, extra_reasons: tuple[str, ...] = ()) -> None:
    """A whole chat completion. Raises Violation."""
    must(whole.get("object") == "chat.completion", f"object is {whole.get('object')!r}")
    a_text(whole.get("id"), "id")
    a_count(whole.get("created"), "created")
    a_text(whole.get("model"), "model")
    shapes.usage(whole.get("usage"))
    choices = objects(whole.get("choices"), "choices")
    must([choice.get("index") for choice in choices] == list(range(len(choices))), "the indices are not dense")
    for choice in choices:
        _check_whole_choice(choice, (*REASONS, *extra_reasons))


def _check_whole_choice(choice: Json, reasons: tuple[str, ...]) -> None:
    message = an_object(choice.get("message"), "message")
    must(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    for key in ("content", "refusal"):
        a_key(message, key, "message")
    a_key(choice, "logprobs", "choice")
    shapes.chat_logprobs(choice["logprobs"], "logprobs")
    reason = choice.get("finish_reason")
    must(reason in reasons, f"finish_reason is {reason!r}")
    must("tool_calls" not in message or an_array(message["tool_calls"], "tool_calls"), "tool_calls is empty")
    calls = objects(message.get("tool_calls", []), "tool_calls")
    must(reason != "tool_calls" or calls, "finish_reason is tool_calls without a call")
    for call in calls:
        kind, text = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
        body = an_object(call.get(kind), f"{kind} of a call")
        must(call.get("id") and call.get("type") == kind and body.get("name"), "a call without id, type or name")
        a_text(body.get(text), f"{text} of a call")
