"""Runs in a worker process: compiles a grammar to see whether that works, and what it takes.

A compiled grammar cannot be sent to another process. Compiling is deterministic, so that what has passed here takes
as much time and memory in the server, and what has not is never compiled there.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import msgspec
from msgspec import Struct

from ..core.errors import EngineError
from ..workers.child import memory_in_use, serve
from .grammar_compiler import CompilerLimits, Rejected, Vocabulary, compile_with, make_tools


class TrialSetup(Struct, frozen=True):
    """A `Vocabulary`, and the limits."""

    tokens: list[bytes]
    special: list[int]
    eos: list[int]
    limits: CompilerLimits


class Outcome(Struct, frozen=True):
    """error: why it does not compile. has_panicked: llguidance failed, maybe because of the grammar. memory: bytes."""

    error: str | None = None
    has_panicked: bool = False
    memory: int = 0


def start(data: bytes) -> Callable[[bytes], bytes]:
    setup = msgspec.msgpack.decode(data, type=TrialSetup)
    single = {token[0]: id for id, token in enumerate(setup.tokens) if len(token) == 1}

    def encode(text: str) -> list[int]:
        """What the tokens of forced text are changes what is generated, and hardly the work."""
        return [single[byte] for byte in text.encode() if byte in single]

    tools = make_tools(Vocabulary(setup.tokens, setup.special, setup.eos, encode), setup.limits)

    def work(call: bytes) -> bytes:
        before, begun = memory_in_use(), process_time()
        try:
            compiled = compile_with(tools, call.decode("utf-8", "surrogatepass"))
        except Rejected as rejected:
            outcome = Outcome(error=rejected.message)
        except EngineError:
            outcome = Outcome(has_panicked=True)
        else:
            # Where the platform does not tell: no grammar was seen that allocates more than 100 MB a second.
            estimate = int((process_time() - begun) * 100_000_000)
            outcome = Outcome(memory=max(memory_in_use() - before, estimate))
            del compiled
        return msgspec.msgpack.encode(outcome)

    return work


if __name__ == "__main__":
    serve(start)
