"""Selection of the script entry that replies to a request."""

from __future__ import annotations

from typing import Protocol

from ...core.errors import (
    RequestError,
)
from .match_rule import MatchRule, Subject
from .script import Script, ScriptEntry


class ScriptSource(Protocol):
    """What an engine takes its replies from."""

    @property
    def is_empty(self) -> bool:
        """Whether it has never had an entry."""
        ...

    def next_entry(self, subject: Subject) -> ScriptEntry:
        """Select the entry for a request, and count the use.

        Raises:
            RequestError: there is none.
        """
        ...


class _EntryState:
    """An entry and its remaining uses; None is unlimited."""

    def __init__(self, entry: ScriptEntry) -> None:
        self.entry = entry
        self.remaining_uses = entry.max_uses

    def accepts(self, subject: Subject) -> bool:
        return self.remaining_uses != 0 and (self.entry.match or MatchRule()).accepts(subject)

    def use(self) -> ScriptEntry:
        if self.remaining_uses is not None:
            self.remaining_uses -= 1
        return self.entry


class ScriptState:
    """The state of one script."""

    def __init__(self, script: Script) -> None:
        entries = [_EntryState(entry) for entry in script.entries]
        # `sorted` is stable: entries with a match come first, each kind in its own
        # order.
        self._entries = sorted(entries, key=lambda part: part.entry.match is None)
        self._num_requests = 0

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def next_entry(self, subject: Subject) -> ScriptEntry:
        """Select the entry for a request and count the use. Raises RequestError if
        there is none.
        """
        self._num_requests += 1
        for state in self._entries:
            if state.accepts(subject):
                return state.use()
        excerpt = subject.text if len(subject.text) <= 80 else subject.text[:79] + "…"
        context = f"The last {subject.role} message is {excerpt!r}."
        if self.is_empty:
            message = "The script is empty, and this engine only returns replies from its script."
        elif self._entries[-1].entry.match is None:
            message = (
                f"The script is exhausted: there is no reply left for call {self._num_requests}. "
                f"Add an entry, or give the last one `repeat: true`. {context}"
            )
        else:
            message = (
                f"No entry of the script matches. Change one, or add one without `match` as "
                f"a fallback. {context}"
            )
        raise RequestError(message, code="script_used_up")
