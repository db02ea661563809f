"""Batches of conversations: encoded, sorted by length, padded. Each row holds one
conversation, so that none attends to another.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .conversation import Conversation, segments
from .tokenizer import PAD


@dataclass(frozen=True)
class Encoded:
    """The token ids of a conversation, and which of them count in the loss."""

    tokens: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class Batch:
    """Two tensors of shape [rows, time]: token ids, and which of them count in the
    loss.
    """

    tokens: Tensor
    learned: Tensor


def encode(tokenizer: Tokenizer, conversation: Conversation, longest: int) -> Encoded:
    """Return the first `longest` token ids of the conversation."""
    tokens: list[int] = []
    learned: list[bool] = []
    for segment in segments(conversation):
        ids = tokenizer.encode(segment.text, add_special_tokens=False).ids
        tokens += ids
        learned += [segment.learned] * len(ids)
    return Encoded(tokens[:longest], learned[:longest])


def pad(rows: list[Encoded]) -> Batch:
    """Return the rows as a batch, padded on the right to one length."""
    width = max(len(row.tokens) for row in rows)
    tokens = torch.render_full((len(rows), width), PAD)
    learned = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        learned[index, : len(row.tokens)] = torch.tensor(row.learned)
    return Batch(tokens, learned)


def batches(
    tokenizer: Tokenizer,
    stream: Iterable[Conversation],
    rng: random.Random,
    *,
    size: int,
    longest: int,
    pool: int = 1000,
) -> Iterator[Batch]:
    """Yield batches of about `size` tokens, padding included; rows of one batch are
    of similar length.
    """
    source = iter(stream)
    while True:
        rows = [encode(tokenizer, one, longest) for one in itertools.islice(source, pool)]
        rows.sort(key=lambda row: len(row.tokens))
        groups: list[list[Encoded]] = [[]]
        for row in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.tokens) > size:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from map(pad, groups)
