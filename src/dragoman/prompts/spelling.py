"""How a model spelled what it said: a text has many sequences of tokens, and a cached prefix is one of them.

A template writes an earlier answer into the prompt again as text. Where a piece of the prompt between two control
tokens is, byte for byte, a piece that the model said between two of them, it gets the ids that the model chose. The
text of the prompt, and what is a control token in it, is never changed by that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set

Ids = tuple[int, ...]


class Spellings:
    """Of one prompt. Those of equal pieces are taken in the order in which they were said, each once."""

    def __init__(self, runs: Sequence[Ids], controls: Set[int], token_bytes: Callable[[int], bytes]) -> None:
        """runs: ids that were sampled, each with those of its prompt behind the last control token."""
        self._known: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        for run in runs:
            for piece in _pieces(run, controls):
                spelled = list(map(token_bytes, piece))
                # Another model may have said it: ids that nothing is known of here are never taken.
                if all(spelled):
                    self._known[b"".join(spelled)].append(piece)

    def take(self, text: str) -> Ids | None:
        """None for what was never said."""
        known = self._known.get(text.encode("utf-8", "surrogatepass"))
        return known.popleft() if known else None


def _pieces(run: Ids, controls: Set[int]) -> list[Ids]:
    pieces: list[list[int]] = [[]]
    for id in run:
        if id in controls:
            pieces.append([])
        else:
            pieces[-1].append(id)
    return [tuple(piece) for piece in pieces if piece]


def since_control(prompt: Ids, controls: Set[int]) -> Ids:
    """The ids behind the last control token: what an answer goes on from."""
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in controls), 0)
    return prompt[start:]
