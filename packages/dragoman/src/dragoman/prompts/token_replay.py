"""Reuses the token ids that were sampled for a text.

A text has many tokenizations, and the KV cache holds one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set

Ids = tuple[int, ...]


class SampledPrefixes:
    """The sampled texts of one conversation and their ids. Equal texts are used in the
    order of sampling, each once.
    """

    def __init__(
        self, runs: Sequence[Ids], control_ids: Set[int], token_bytes: Callable[[int], bytes]
    ) -> None:
        """runs: sampled ids of each response, after the ids of its prompt since the
            last control token.
        control_ids: ids of the control tokens, which separate texts.
        token_bytes: returns the bytes of a token; empty for unknown ids.
        """
        self._ids_by_bytes: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        pieces: list[list[int]] = []
        for run in runs:
            pieces.append([])
            for id in run:
                if id in control_ids:
                    pieces.append([])
                else:
                    pieces[-1].append(id)
        for piece in pieces:
            token_texts = list(map(token_bytes, piece))
            # Another model may have sampled the run: ids outside this vocabulary are
            # ignored.
            if piece and all(token_texts):
                self._ids_by_bytes[b"".join(token_texts)].append(tuple(piece))

    def take_ids(self, text: str) -> Ids | None:
        """Remove and return the ids of this text; None if it was not sampled."""
        matching_ids = self._ids_by_bytes.get(text.encode("utf-8", "surrogatepass"))
        return matching_ids.popleft() if matching_ids else None


def find_ids_since_control(prompt: Ids, control_ids: Set[int]) -> Ids:
    """Return the ids of a prompt since the last control token: the response continues
    their text.
    """
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in control_ids), 0)
    return prompt[start:]
