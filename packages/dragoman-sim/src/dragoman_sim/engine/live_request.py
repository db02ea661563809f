"""A request in progress on a rank."""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import Struct

from dragoman.core.token_engine import (
    OutputCallback,
    TokenOutput,
    TokenRequest,
)

from .block_hashes import TokenContents
from .fault_injection import Fault
from .keyed_random import KeyedRandom
from .reply_generator import PlannedReply
from .sequence import SimulatedSequence


class Delay(Struct, frozen=True):
    """A pause in a request's delayed outputs."""

    seconds: float


class ChoiceLengths:
    """The lengths of a request's choices. remaining: number of choices that have not
    ended.
    """

    __slots__ = ("longest", "remaining")

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining
        self.longest = 0

    def record(self, length: int) -> int | None:
        """Record the length of a finished choice. Returns the longest after the last
        one, None before.
        """
        self.remaining -= 1
        self.longest = max(self.longest, length)
        return None if self.remaining else self.longest


class LiveRequest:
    """A request in progress. It stores only the used parts of its TokenRequest.

    choices: number of requested choices, for the first of them; 0 for the others.
    choice_lengths: shared by the choices of a request; None if there is one.
    delayed: outputs that are not delivered yet; None if outputs are delivered at once.
    is_plain: whether the reply has no delays and no faults.
    arrived_at, queued_at, scheduled_at: times of arrival, of entering the queue, and of
        first leaving it.
    first_token_at, last_token_at: times of the first and of the latest token.
    """

    __slots__ = (
        "arrived_at",
        "choice_lengths",
        "choices",
        "cut_after",
        "delayed",
        "deliver",
        "first_token_at",
        "is_plain",
        "last_token_at",
        "logprobs",
        "lora",
        "min_tokens",
        "num_output_tokens",
        "prompt_logprobs",
        "queued_at",
        "reply",
        "reply_tokens",
        "rng",
        "scheduled_at",
        "sequence",
        "stop_token_ids",
        "tokens",
    )

    def __init__(
        self,
        request: TokenRequest,
        deliver: OutputCallback,
        sequence: SimulatedSequence,
        contents: TokenContents,
        reply: PlannedReply,
        rng: KeyedRandom,
        *,
        arrived_at: float,
        lora: str = "",
        fault: Fault | None = None,
        choice_lengths: ChoiceLengths | None = None,
    ) -> None:
        self.choice_lengths = choice_lengths
        self.deliver = deliver
        self.sequence = sequence
        self.reply = reply
        self.stop_token_ids = request.stop_token_ids
        self.min_tokens = request.min_tokens
        self.logprobs = request.logprobs
        self.prompt_logprobs = request.prompt_logprobs
        # Stored only for logprobs; the reply holds its own reference.
        self.rng = None if request.logprobs is None and request.prompt_logprobs is None else rng
        self.choices = (
            0 if request.choice else 1 if request.origin is None else request.origin.choices
        )
        self.tokens = contents.tokens
        self.reply_tokens = reply.tokens
        self.lora = lora
        self.cut_after = None if fault is None else fault.cut_after
        self.delayed: deque[TokenOutput | Delay] | None = None
        if fault is not None:
            if fault.hang:
                waits = {**reply.waits, 0: reply.waits.get(0, 0.0) + fault.hang}
                self.reply = msgspec.structs.replace(self.reply, waits=waits)
            if fault.fail_after is not None:
                self.reply = msgspec.structs.replace(
                    self.reply, fails_at=fault.fail_after, error=fault.message
                )
        self.num_output_tokens = 0
        self.arrived_at = self.queued_at = self.last_token_at = arrived_at
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        planned = self.reply
        self.is_plain = not (
            planned.waits
            or planned.pace
            or planned.fails_at is not None
            or self.cut_after is not None
        )

    @property
    def id(self) -> str:
        return self.sequence.id

    def emit(self, output: TokenOutput) -> None:
        if self.delayed is None:
            self.deliver(output)
        else:
            self.delayed.append(output)

    def discard_outputs(self) -> None:
        """Drop all undelivered outputs."""
        self.deliver = _discard


def _discard(_: TokenOutput) -> None:
    """Discard an output: the client has disconnected."""
