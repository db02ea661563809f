"""Prompt logprobs from llama.cpp, which is made to generate the prompt's tokens: it
reports no others.

A grammar of token ids allows only the prompt's next tokens; the logprobs that llama.cpp
reports are the model's own, before any grammar. One completion computes many tokens. It
reports no logprob for a token that ends within a character, and may not follow a
grammar to its end: then a completion of one token lists the whole vocabulary.
"""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import EngineError
from ...core.token_engine import (
    TokenLogprob,
)
from .token_filter import FORCING_BIAS, Bias
from .token_text import TokenText, ends_mid_character
from .wire import CompletionChunk, ScoredToken

_TOKENS_PER_COMPLETION = 256


class PromptCompletion(Struct, frozen=True):
    """A completion that computes logprobs of a prompt.

    prompt: the tokens before those to generate.
    count: number of tokens to generate.
    n_probs: number of alternatives to list.
    grammar: forces the tokens; empty if `bias` is used.
    bias: forces a single token, so that llama.cpp lists the logprobs at its position.
    """

    prompt: tuple[int, ...]
    count: int
    n_probs: int
    grammar: str = ""
    bias: tuple[Bias, ...] = ()


class PromptScorer:
    """Collects the logprobs of a prompt, in order. Until `is_finished`, another
    completion is needed.

    alternatives: number of alternatives to list for each token.
    eog: ids at which llama.cpp ends a completion.
    """

    def __init__(
        self, prompt: tuple[int, ...], alternatives: int, token_text: TokenText, eog: frozenset[int]
    ) -> None:
        self._prompt = prompt
        self._alternatives = alternatives
        self._token_text = token_text
        self._eog = eog
        self._logprobs: list[TokenLogprob | None] = [None]
        self._missing: list[int] = []
        """Positions without a logprob, before the end of `_logprobs`."""
        self._completion: PromptCompletion | None = None

    @property
    def is_finished(self) -> bool:
        return len(self._logprobs) == len(self._prompt) and not self._missing

    @property
    def logprobs(self) -> tuple[TokenLogprob | None, ...]:
        """The logprobs, once all are known. The first is None."""
        return tuple(self._logprobs)

    def build_completion(self) -> PromptCompletion:
        """Build the next completion."""
        begin = self._missing[0] if self._missing else len(self._logprobs)
        prompt = self._prompt[:begin]
        if self._missing:
            # Forces a letter, because llama.cpp reports no logprobs at a token that
            # ends within a character.
            bias = ((self._token_text.find_letter(), FORCING_BIAS),)
            self._completion = PromptCompletion(prompt, 1, len(self._token_text), bias=bias)
        else:
            end = min(begin + _TOKENS_PER_COMPLETION, len(self._prompt))
            ends = (
                position + 1
                for position in range(begin, end)
                if self._prompt[position] in self._eog
            )
            tokens = self._prompt[begin : next(ends, end)]
            grammar = "%llguidance {}\nstart: " + " ".join(f"<[{id}]>" for id in tokens) + "\n"
            self._completion = PromptCompletion(
                prompt, len(tokens), max(self._alternatives, 1), grammar
            )
        return self._completion

    def feed(self, chunk: CompletionChunk) -> None:
        """Process the response. Raises EngineError if it does not contain the requested
        tokens.
        """
        completion = self._completion
        self._completion = None
        if completion is None or not chunk.tokens:
            raise EngineError("llama.cpp computed no logprobs for the prompt.")
        if completion.grammar:
            self._add_generated(completion, chunk)
            return
        position = self._missing.pop(0)
        if not chunk.completion_probabilities:
            raise EngineError("llama.cpp computed no logprobs for the prompt.")
        self._logprobs[position] = build_logprob(
            chunk.completion_probabilities[0], self._prompt[position], self._alternatives
        )

    def _add_generated(self, completion: PromptCompletion, chunk: CompletionChunk) -> None:
        begin = len(completion.prompt)
        text = b""
        scores = iter(chunk.completion_probabilities)
        for position, token in enumerate(chunk.tokens[: completion.count], begin):
            if token != self._prompt[position]:
                # llama.cpp did not follow the grammar.
                break
            text += self._token_text.get_bytes(token)
            scored = None if ends_mid_character(text) else next(scores, None)
            if scored is None or scored.id != token:
                self._missing.append(position)
                self._logprobs.append(None)
            else:
                self._logprobs.append(build_logprob(scored, token, self._alternatives))
        # Not even the first token followed the grammar: without this, the same
        # completion would be requested forever.
        if len(self._logprobs) == begin:
            self._missing.append(begin)
            self._logprobs.append(None)


def build_logprob(scored: ScoredToken, token: int, alternatives: int) -> TokenLogprob:
    """Build the logprob of a token from those that llama.cpp lists. Raises EngineError
    if it is not among them.
    """
    top = tuple(
        (other.id, other.logprob) for other in scored.top_logprobs if other.logprob is not None
    )
    rank = next((position for position, (id, _) in enumerate(top, start=1) if id == token), None)
    if scored.id == token and scored.logprob is not None:
        return TokenLogprob(scored.logprob, rank, top[:alternatives])
    if rank is None:
        raise EngineError(f"llama.cpp did not compute the logprob of token {token}.")
    return TokenLogprob(top[rank - 1][1], rank, top[:alternatives])
