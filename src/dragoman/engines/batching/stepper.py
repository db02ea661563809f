"""The engine without its thread: every call of `step` computes one step for all sequences that run.

Knows nothing of event loops, threads or clocks, so that whole conversations can be tested one step at a time.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.control import FIRST_VERSION
from ...core.engine import Ended, Failed, PromptScored, Refused, Sampled, SampledBy, Scheduled, Score, TokenOutput
from ...core.events import FinishReason
from .blocks import BLOCK_SIZE, BlockPool
from .constraint import allows
from .model import Model, Runner, States
from .offload import BlockFiles
from .sampler import NOTHING, sample
from .scheduler import Chunk, Scheduler, SchedulerConfig
from .scores import log_softmax, score
from .sequence import Sequence

Floats = NDArray[np.float32]

_SCORED_AT_ONCE = 128
"""Prompt tokens whose log-probabilities over the vocabulary are held at once."""


class Output(Struct, frozen=True, gc=False):
    """key: of the sequence that it is for."""

    key: int
    output: TokenOutput

    @property
    def last(self) -> bool:
        return isinstance(self.output, (Ended, Failed, Refused))


class Stepper:
    """A model, its scheduler and its pool of keys and values, which holds at least one longest sequence.

    version: the name of the model's weights.
    """

    def __init__(
        self,
        model: Model,
        config: SchedulerConfig,
        num_kv_tokens: int,
        files: BlockFiles | None = None,
        version: str = FIRST_VERSION,
    ) -> None:
        self._pool = BlockPool(-(-num_kv_tokens // BLOCK_SIZE) + 1)
        self._model = model
        self._runner: Runner | None = None
        self._files = files
        self.scheduler = Scheduler(config, self._pool, files)
        self.version = version

    def step(self) -> list[Output]:
        """Compute a step; what came of it. May raise whatever a broken machine raises: then `recover`."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return []
        if self._runner is None:
            self._runner = self._model.runner(self._pool.size + 1)
        for load in self.scheduler.taken_loads():
            self._runner.restore(load.block, load.contents)
        states = self._runner.forward(chunks)
        self.scheduler.commit(chunks)
        outputs = [_scheduled(chunk.sequence) for chunk in chunks if not chunk.sequence.announced]
        for place, chunk in enumerate(chunks):
            outputs += self._score_prompt(chunk, states, place)
        due = [place for place, chunk in enumerate(chunks) if chunk.end == chunk.sequence.num_tokens]
        if due:
            outputs += self._sample([chunks[place].sequence for place in due], states.last(due))
        return outputs

    def spill(self, most: int = 1) -> bool:
        """Keep some of what was computed outside of the pool, at most so many blocks; True if more could be."""
        if self._files is None or self._runner is None:
            return False
        return self._files.spill(self._pool.block_of, self._runner.save, most)

    def renew(self, version: str) -> None:
        """The model has other weights from now on. Files of keys and values belong to those of the beginning."""
        self.version, self._files = version, None
        self.scheduler.restart()
        self.scheduler.disuse_offload()

    def close(self) -> None:
        """Give the pool's memory back; the next step takes it again. What runs will be computed from its beginning."""
        self.scheduler.restart()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def recover(self) -> list[Output]:
        """After a step that raised: fail what ran; what waits will run, on an empty cache."""
        failed = self.scheduler.reset()
        return [Output(s.key, Failed(s.request.id, "The engine failed while computing a step.")) for s in failed]

    def _score_prompt(self, chunk: Chunk, states: States, place: int) -> list[Output]:
        """Each token of the chunk scores the one after it, if that belongs to the prompt."""
        sequence, scores = chunk.sequence, chunk.sequence.prompt_scores
        if scores is None:
            return []
        stop = min(chunk.end, sequence.num_prompt_tokens - 1)
        # A sequence that was preempted meets some tokens for the second time.
        for begin in range(max(chunk.begin, len(scores) - 1), stop, _SCORED_AT_ONCE):
            end = min(begin + _SCORED_AT_ONCE, stop)
            rows = log_softmax(states.span(place, begin - chunk.begin, end - chunk.begin))
            targets = sequence.tokens[begin + 1 : end + 1]
            count = sequence.request.prompt_logprobs or 0
            scores += [score(row, token, count) for row, token in zip(rows, targets, strict=True)]
        if len(scores) < sequence.num_prompt_tokens:
            return []
        sequence.prompt_scores = None
        return [Output(sequence.key, PromptScored(sequence.request.id, tuple(scores)))]

    def _sample(self, sequences: list[Sequence], logits: Floats) -> list[Output]:
        masks = [sequence.constraint.mask() if sequence.constraint else None for sequence in sequences]
        tokens = sample(logits, [sequence.sampling for sequence in sequences], masks)
        for place, sequence in enumerate(sequences):
            if sequence.thought:
                tokens[place] = _forced(sequence, masks[place], tokens[place])
        scores = _scores(sequences, logits, tokens)
        outputs: list[Output] = []
        ended: list[Sequence] = []
        for sequence, token, value, row in zip(sequences, tokens, scores, logits, strict=True):
            if token != NOTHING:
                if sequence.version != self.version:
                    sequence.version = self.version
                    outputs.append(Output(sequence.key, SampledBy(sequence.request.id, self.version)))
                outputs.append(Output(sequence.key, Sampled(sequence.request.id, token, value)))
            end = _dead_end(sequence, row) if token == NOTHING else sequence.append(token)
            if end:
                outputs.append(Output(sequence.key, end))
                ended.append(sequence)
        # Only now: had anything raised, all of them would still run, and `recover` would fail them all.
        for sequence in ended:
            self.scheduler.remove(sequence)
        return outputs


def _scheduled(sequence: Sequence) -> Output:
    sequence.announced = True
    return Output(sequence.key, Scheduled(sequence.request.id, sequence.cached_tokens))


def _forced(sequence: Sequence, mask: bytes | None, token: int) -> int:
    """The token that a used-up thought has to go on with, unless the grammar refuses it."""
    forced = sequence.thought.forced if sequence.thought else None
    if forced is None:
        return token
    if allows(mask, forced):
        return forced
    if sequence.thought:
        sequence.thought.refuse()
    return token


def _scores(sequences: list[Sequence], logits: Floats, tokens: list[int]) -> list[Score | None]:
    asked = [place for place, sequence in enumerate(sequences) if sequence.request.logprobs is not None]
    scores: list[Score | None] = [None] * len(sequences)
    if asked:
        for place, row in zip(asked, log_softmax(logits[asked]), strict=True):
            if tokens[place] != NOTHING:
                scores[place] = score(row, tokens[place], sequences[place].request.logprobs or 0)
    return scores


def _dead_end(sequence: Sequence, row: Floats) -> Ended | Failed | Refused:
    """No token can be had: the masks together leave none, or something is broken."""
    if sequence.constraint and sequence.constraint.broken:
        return sequence.broken()
    if not np.isfinite(row).all():
        return Failed(sequence.request.id, "The model returned invalid probabilities.")
    return Ended(sequence.request.id, FinishReason.STOP)
