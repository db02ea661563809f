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

    @property
    def pairs(self) -> float:
        """Query-key pairs of its attention."""
        return self.num_tokens * (self.num_computed_tokens + self.num_tokens / 2)


class RemoteFetch(Struct, frozen=True, gc=False):
    """A sequence that waits for num_tokens tokens of its prompt from another instance;
    0 if all are cached here.
    """

    sequence: SimulatedSequence
    num_tokens: int


class SchedulerOutput:
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

    __slots__ = (
        "admitted",
        "below_threshold",
        "block_fillers",
        "chunks",
        "counts",
        "decodes",
        "drafts",
        "fetching",
        "has_loras",
        "last_chunks",
        "loaded_loras",
        "num_chunk_tokens",
        "num_draft_tokens",
        "padded",
        "preempted",
        "samplers",
        "transfers",
    )

    def __init__(self) -> None:
        self.decodes: list[SimulatedSequence] = []
        self.chunks: list[PrefillChunk] = []
        self.num_chunk_tokens = 0
        self.last_chunks: list[SimulatedSequence] = []
        self.samplers: list[SimulatedSequence] | None = None
        self.block_fillers: list[SimulatedSequence] = []
        self.admitted: list[SimulatedSequence] = []
        self.preempted: list[SimulatedSequence] = []
        self.fetching: list[RemoteFetch] = []
        self.below_threshold: list[SimulatedSequence] = []
        self.drafts: dict[SimulatedSequence, int] = {}
        self.num_draft_tokens = 0
        self.padded: set[SimulatedSequence] = set()
        self.counts: dict[SimulatedSequence, int] = {}
        self.has_loras = False
        self.loaded_loras = 0
        self.transfers: StepTransfers | None = None

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
        lora_tokens = 0
        if self.has_loras:
            lora_tokens = sum(
                1 + self.drafts.get(sequence, 0) for sequence in decodes if sequence.lora
            )
            lora_tokens += sum(chunk.num_tokens for chunk in chunks if chunk.sequence.lora)
        return StepLoad(
            tokens=self.num_tokens,
            context=sum([sequence.num_computed_tokens for sequence in decodes]) if decodes else 0,
            prefill_pairs=sum([chunk.pairs for chunk in chunks]) if chunks else 0,
            sequences=len(self.decodes) + len(self.chunks),
            drafts=self.num_draft_tokens,
            lora_tokens=lora_tokens,
            loaded_loras=self.loaded_loras,
        )
