"""Random answers, sampled from the masks of a grammar."""

from __future__ import annotations

from random import Random

import numpy as np

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.response_grammar import ConstraintGrammar
from dragoman.core.matcher import Matcher
from dragoman.core.tokenizer import Tokenizer

CLOSERS = (b'"', b"}", b"]", b"\n", b".", b"@")


def list_allowed(matcher: Matcher, size: int) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
    return [int(id) for id in np.flatnonzero(bits) if id < size]


def advance(matcher: Matcher, ids: list[int]) -> bool:
    return all(matcher.advance(id) for id in ids)


def accepts(compiler: Compiler, grammar: ConstraintGrammar, ids: list[int], eos: int) -> bool:
    """Return whether these ids are a complete answer."""
    matcher = compiler.compile(grammar).build_matcher()
    return advance(matcher, [*ids, eos])


def walk(
    matcher: Matcher, tokenizer: Tokenizer, eos: int, random: Random, most: int = 300
) -> list[int] | None:
    """Sample a random answer, without its end token; None if it does not end. Later
    tokens prefer to close.
    """
    controls = set(tokenizer.special_tokens.values())
    ids: list[int] = []
    while len(ids) < most:
        choices = list_allowed(matcher, tokenizer.vocab_size)
        assert choices, "the mask allows nothing"
        if eos in choices and (
            len(choices) == 1 or random.random() < (0.2 if len(ids) < 30 else 0.9)
        ):
            assert matcher.advance(eos)
            return ids
        inner = [id for id in choices if id != eos]
        late = len(ids) > 15 and random.random() < 0.7
        ids.append(_closing(inner, controls, tokenizer, random) if late else random.choice(inner))
        assert matcher.advance(ids[-1])
    return None


def _closing(choices: list[int], controls: set[int], tokenizer: Tokenizer, random: Random) -> int:
    """Return a token that closes something, if there is one."""
    ends = [id for id in choices if id in controls]
    for closer in CLOSERS:
        ends = ends or [id for id in choices if tokenizer.token_bytes(id).startswith(closer)]
    return random.choice(ends or choices)


def text(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()
