"""The grammar of event streams: which event may follow which. A state machine modeled
on h11's _state.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .events import (
    TEXT_DELTAS,
    ChoiceFinished,
    Event,
    Finished,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)

IDLE = "idle"
IN_TEXT = "text"
IN_REASONING = "reasoning"
IN_REFUSAL = "refusal"
IN_CALL = "call"
DONE = "done"

_PART_STARTS: dict[type[Event], str] = {
    TextDelta: IN_TEXT,
    ReasoningDelta: IN_REASONING,
    RefusalDelta: IN_REFUSAL,
    ToolCallStart: IN_CALL,
    ChoiceFinished: DONE,
}
TRANSITIONS: dict[str, dict[type[Event], str]] = {
    IDLE: _PART_STARTS,
    IN_TEXT: _PART_STARTS,
    IN_REASONING: _PART_STARTS,
    IN_REFUSAL: _PART_STARTS,
    IN_CALL: _PART_STARTS | {ToolCallDelta: IN_CALL},
    DONE: {},
}
_CHOICE_EVENTS = (*TEXT_DELTAS, ToolCallStart, ToolCallDelta, ChoiceFinished)


class ProtocolError(Exception):
    """An engine or a parser violated the event grammar. Always a bug, never a user
    error.
    """


class EventGrammar:
    """The state of one stream.

    `feed` raises ProtocolError for an illegal event, `close` if the stream is
    incomplete.
    """

    def __init__(self) -> None:
        self._states: list[str] = []
        self._prompts: list[bool] = []
        self._started = False
        self._finished = False

    def feed(self, event: Event) -> None:
        if self._finished:
            raise ProtocolError(f"{event} after Finished")
        if self._started and isinstance(event, _CHOICE_EVENTS):
            if not 0 <= event.choice < len(self._states):
                raise ProtocolError(f"{event}: there are {len(self._states)} choices")
            # msgspec does not validate structs built in Python; a None from a
            # third-party engine would fail only later, in a writer.
            if isinstance(event, TEXT_DELTAS) and type(event.text) is not str:
                raise ProtocolError(f"{event}: text must be a string")
            state = self._states[event.choice]
            next_state = TRANSITIONS[state].get(type(event))
            if next_state is None:
                raise ProtocolError(f"{event} while choice {event.choice} is {state}")
            self._states[event.choice] = next_state
        elif isinstance(event, Started):
            self._start(event)
        elif not self._started:
            raise ProtocolError(f"{event} before Started")
        elif isinstance(event, Finished):
            usage = event.usage
            _check_counts(
                event,
                (usage.prompt, usage.completion, usage.cached, usage.reasoning, usage.written),
            )
            if any(state is not DONE for state in self._states):
                raise ProtocolError(f"Finished while choices are {self._states}")
            self._finished = True
        elif isinstance(event, PromptTokens):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._accept_prompt(event)
        else:
            raise ProtocolError(f"{event!r} is not an event")

    def _start(self, event: Started) -> None:
        if self._started:
            raise ProtocolError("Started twice")
        if event.choices < 1 or event.prompts < 1 or event.choices % event.prompts:
            raise ProtocolError(
                f"{event.choices} choices do not divide among {event.prompts} prompts"
            )
        _check_counts(event, (event.prompt_tokens, event.cached_tokens, event.written_tokens))
        self._started = True
        self._states = [IDLE] * event.choices
        self._prompts = [False] * event.prompts

    def close(self) -> None:
        if not self._finished:
            raise ProtocolError("stream ended without Finished")

    def _accept_prompt(self, event: PromptTokens) -> None:
        choices_per_prompt = len(self._states) // len(self._prompts)
        prompt_states = self._states[
            event.prompt * choices_per_prompt : (event.prompt + 1) * choices_per_prompt
        ]
        if self._prompts[event.prompt] or any(state is not IDLE for state in prompt_states):
            raise ProtocolError(f"PromptTokens of prompt {event.prompt} twice or too late")
        self._prompts[event.prompt] = True


def _check_counts(event: Event, counts: tuple[object, ...]) -> None:
    """Check the token counts of a third-party engine. None means unknown."""
    for count in counts:
        if count is None:
            continue
        # Not isinstance, since True and False are ints too.
        if type(count) is not int or count < 0:
            raise ProtocolError(f"{event}: {count!r} is not a valid token count")


def check_events(events: Iterable[Event]) -> Iterator[Event]:
    """Pass events through unchanged; raise ProtocolError at the first illegal one."""
    grammar = EventGrammar()
    for event in events:
        grammar.feed(event)
        yield event
    grammar.close()
