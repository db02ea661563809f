"""The worker process that compiles a grammar to measure its cost.

A compiled grammar cannot be sent to another process. Compiling is deterministic: a
grammar that passes here takes the same time and memory in the server, and one that
fails is never compiled there.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import msgspec
from msgspec import Struct

from ..core.errors import EngineError
from ..isolation.worker_loop import memory_in_use, serve
from .grammar_compiler import CompilerLimits, InvalidGrammar, compile_with, make_tools
from .vocabulary import GrammarVocabulary


class TrialSetup(Struct, frozen=True):
    """The fields of a `GrammarVocabulary`, and the compiler's limits."""

    tokens: list[bytes]
    special: list[int]
    eos: list[int]
    limits: CompilerLimits


class Outcome(Struct, frozen=True):
    """The result of a trial.

    error: why the grammar does not compile; None if it does.
    has_panicked: llguidance panicked, possibly because of the grammar.
    memory: compiled size in bytes.
    """

    error: str | None = None
    has_panicked: bool = False
    memory: int = 0


def start(data: bytes) -> Callable[[bytes], bytes]:
    """Build the worker's function, which maps a grammar to its Outcome, from an encoded
    TrialSetup.
    """
    setup = msgspec.msgpack.decode(data, type=TrialSetup)
    single = {token[0]: id for id, token in enumerate(setup.tokens) if len(token) == 1}

    def encode(text: str) -> list[int]:
        """Encode byte by byte. The real tokenizer affects generation, but hardly the
        cost of compiling.
        """
        return [single[byte] for byte in text.encode() if byte in single]

    tools = make_tools(
        GrammarVocabulary(setup.tokens, setup.special, setup.eos, encode), setup.limits
    )

    def work(call: bytes) -> bytes:
        memory_before = memory_in_use()
        started_at = process_time()
        try:
            compiled = compile_with(tools, call.decode("utf-8", "surrogatepass"))
        except InvalidGrammar as rejected:
            outcome = Outcome(error=rejected.message)
        except EngineError:
            outcome = Outcome(has_panicked=True)
        else:
            # For platforms that report no memory: no measured grammar allocates more
            # than 100 MB per second.
            estimate = int((process_time() - started_at) * 100_000_000)
            outcome = Outcome(memory=max(memory_in_use() - memory_before, estimate))
            del compiled
        return msgspec.msgpack.encode(outcome)

    return work


if __name__ == "__main__":
    serve(start)
