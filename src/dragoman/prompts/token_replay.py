"""Reuses sampled token ids in prompts: a text has many tokenisations, and a cached prefix matches one of them only.

A template renders an earlier response as text again. Where the text between two control tokens equals, byte for byte, a
text that the model sampled between two of them, it gets the sampled ids. The prompt's text and its control tokens never
change.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set

Ids = tuple[int, ...]


class SampledPrefixes:
    """The sampled texts of one conversation. Equal texts are used in the order of sampling, each once."""

    def __init__(self, runs: Sequence[Ids], control_ids: Set[int], token_bytes: Callable[[int], bytes]) -> None:
        """runs: sampled ids, each preceded by those of its prompt since the last control token."""
        self._ids_by_bytes: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        for run in runs:
            for piece in _split_at_controls(run, control_ids):
                token_texts = list(map(token_bytes, piece))
                # Another model may have sampled the run: ids outside this vocabulary are ignored.
                if all(token_texts):
                    self._ids_by_bytes[b"".join(token_texts)].append(piece)

    def take_ids(self, text: str) -> Ids | None:
        """The ids of this text; None where it was not sampled."""
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
    """The ids since the last control token, which the response continues."""
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in control_ids), 0)
    return prompt[start:]
