"""The state of a running script: selects entries and counts their uses. Independent of replies."""

from __future__ import annotations

from ...core.errors import RequestError
from .script import MatchRule, Script, ScriptEntry, Subject


class _EntryState:
    """An entry and its remaining uses; None is unlimited."""

    def __init__(self, entry: ScriptEntry) -> None:
        self.entry, self.remaining_uses = entry, entry.max_uses

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
        # `sorted` is stable: entries with a match come first, each kind in its own order.
        self._entries = sorted(entries, key=lambda part: part.entry.match is None)
        self._num_requests = 0

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def next_entry(self, subject: Subject) -> ScriptEntry:
        """Select the entry for a request and count the use. Raises RequestError if there is none."""
        self._num_requests += 1
        for state in self._entries:
            if state.accepts(subject):
                return state.use()
        raise RequestError(self._explain_no_entry(subject), code="script_used_up")

    def _explain_no_entry(self, subject: Subject) -> str:
        if self.is_empty:
            return "The script is empty, and this engine only returns replies from its script."
        last = subject.text if len(subject.text) <= 80 else subject.text[:79] + "…"
        context = f"The last {subject.role} message is {last!r}."
        if self._entries[-1].entry.match is None:
            return (
                f"The script is exhausted: there is no reply left for call {self._num_requests}. "
                f"Add an entry, or give the last one `repeat: true`. {context}"
            )
        return f"No entry of the script matches. Change one, or add one without `match` as a fallback. {context}"
