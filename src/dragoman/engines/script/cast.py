"""Which entry answers which request. Knows the script and how often each entry was used, nothing of replies."""

from __future__ import annotations

from ...core.errors import RequestError
from .script import Entry, Match, Script, Subject


class _Part:
    """An entry, and how many requests it may still answer; None is any number."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.left = entry, entry.uses

    def accepts(self, subject: Subject) -> bool:
        return self.left != 0 and (self.entry.match or Match()).accepts(subject)

    def take(self) -> Entry:
        if self.left is not None:
            self.left -= 1
        return self.entry


class Cast:
    """The state of one script being played."""

    def __init__(self, script: Script) -> None:
        parts = [_Part(entry) for entry in script.entries]
        # `sorted` is stable: those with a match first, each kind in its own order.
        self._parts = sorted(parts, key=lambda part: part.entry.match is None)
        self._calls = 0

    @property
    def empty(self) -> bool:
        return not self._parts

    def next(self, subject: Subject) -> Entry:
        """The entry for this request, counted as used. RequestError when there is none."""
        self._calls += 1
        for part in self._parts:
            if part.accepts(subject):
                return part.take()
        raise RequestError(self._why(subject), code="script_used_up")

    def _why(self, subject: Subject) -> str:
        if self.empty:
            return "The script is empty, and this engine only returns replies from its script."
        last = subject.text if len(subject.text) <= 80 else subject.text[:79] + "…"
        about = f"The last {subject.role} message is {last!r}."
        if self._parts[-1].entry.match is None:
            return (
                f"The script is exhausted: there is no reply left for call {self._calls}. "
                f"Add an entry, or give the last one `repeat: true`. {about}"
            )
        return f"No entry of the script matches. Change one, or add one without `match` as a fallback. {about}"
