"""How a model spelled what it said: a text has many sequences of tokens, and a cached prefix is one of them.

A template writes an earlier answer into the prompt again as text. Where a piece of the prompt between two control
tokens is, byte for byte, a piece that the model said between two of them, it gets the ids that the model chose. The
text of the prompt, and what is a control token in it, is never changed by that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set

Ids = tuple[int, ...]


class SampledPrefixes:
    """Of one prompt. Those of equal pieces are taken in the order in which they were said, each once."""

    def __init__(self, runs: Sequence[Ids], control_ids: Set[int], token_bytes: Callable[[int], bytes]) -> None:
        """runs: ids that were sampled, each with those of its prompt behind the last control token."""
        self._ids_by_bytes: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        for run in runs:
            for piece in _split_at_controls(run, control_ids):
                token_texts = list(map(token_bytes, piece))
                # Another model may have said it: ids that nothing is known of here are never taken.
                if all(token_texts):
                    self._ids_by_bytes[b"".join(token_texts)].append(piece)

    def take_ids(self, text: str) -> Ids | None:
        """None for what was never said."""
        matching_ids = self._ids_by_bytes.get(text.encode("utf-8", "surrogatepass"))
        return matching_ids.popleft() if matching_ids else None


def _split_at_controls(run: Ids, control_ids: Set[int]) -> list[Ids]:
    pieces: list[list[int]] = [[]]
    for id in run:
        if id in control_ids:
            pieces.append([])
        else:
            pieces[-1].append(id)
    return [tuple(piece) for piece in pieces if piece]


def find_ids_since_control(prompt: Ids, control_ids: Set[int]) -> Ids:
    """The ids behind the last control token: what an answer goes on from."""
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in control_ids), 0)
    return prompt[start:]
