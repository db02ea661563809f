"""What the scheduler decides for one step."""

from __future__ import annotations

from msgspec import Struct

from .kv_offloading import StepTransfers
from .latency import StepLoad
from .sequence import SimulatedSequence


class PrefillChunk(Struct, frozen=True, gc=False):
    """A chunk of a prompt (or of a preempted sequence): num_tokens tokens after the
    first num_computed_tokens.
    """

    sequence: SimulatedSequence
    num_computed_tokens: int
    num_tokens: int


class RemoteFetch(Struct, frozen=True, gc=False):
    """A sequence that waits for num_tokens tokens of its prompt from another instance;
    0 if all are cached here.
    """

    sequence: SimulatedSequence
    num_tokens: int


class SchedulerOutput(Struct, eq=False):
    """The sequences of one step.

    decodes: sequences that compute one token and sample the next.
    chunks: prompt chunks.
    last_chunks: sequences that compute the rest of their prompt and sample.
    samplers: sequences that sample, in the order of the step; None if that is decodes,
        then last_chunks.
    block_fillers: decoding sequences that fill a block with a token that is not known
        yet.
    drafts: number of speculative tokens that each decoding sequence verifies, if any.
    padded: sequences of `drafts` that have no drafts yet; padding gives all decodes the
        same number of tokens.
    counts: number of tokens of each sequence; with speculative decoding only.
    has_loras: whether sequences may have adapters.
    loaded_loras: adapters that the device does not have yet.
    admitted: sequences that left the queue for this step.
    preempted: sequences that went back into it.
    fetching: sequences that left the queue to wait for another instance; they take no
        part in the step.
    below_threshold: sequences that ended in the queue, since too little is cached.
    transfers: between device and host memory; None without KV offloading.
    """

    decodes: list[SimulatedSequence] = []
    chunks: list[PrefillChunk] = []
    num_chunk_tokens: int = 0
    last_chunks: list[SimulatedSequence] = []
    samplers: list[SimulatedSequence] | None = None
    block_fillers: list[SimulatedSequence] = []
    admitted: list[SimulatedSequence] = []
    preempted: list[SimulatedSequence] = []
    fetching: list[RemoteFetch] = []
    below_threshold: list[SimulatedSequence] = []
    drafts: dict[SimulatedSequence, int] = {}
    num_draft_tokens: int = 0
    padded: set[SimulatedSequence] = set()
    counts: dict[SimulatedSequence, int] = {}
    has_loras: bool = False
    loaded_loras: int = 0
    transfers: StepTransfers | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + self.num_chunk_tokens + self.num_draft_tokens

    @property
    def load(self) -> StepLoad:
        """The load of this step. Read it right after `schedule`, before the sequences
        change.
        """
        decodes = self.decodes
        chunks = self.chunks
        num_decodes = len(decodes)
        context = 0
        for sequence in decodes:
            context += sequence.num_computed_tokens
        pairs: float = 0
        for chunk in chunks:
            pairs += chunk.num_tokens * (chunk.num_computed_tokens + chunk.num_tokens / 2)
        lora_tokens = 0
        if self.has_loras:
            lora_tokens = sum(
                1 + self.drafts.get(sequence, 0) for sequence in decodes if sequence.lora
            )
            lora_tokens += sum(chunk.num_tokens for chunk in chunks if chunk.sequence.lora)
        return StepLoad(
            num_decodes + self.num_chunk_tokens + self.num_draft_tokens,
            context,
            pairs,
            num_decodes + len(chunks),
            None,
            self.num_draft_tokens,
            lora_tokens,
            self.loaded_loras,
        )
