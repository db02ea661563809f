"""Compiles clients' grammars with bounded time and memory.

Cheap grammars are compiled in the server, others only after a trial compilation in a
worker process.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec

from ..core.errors import RequestError
from ..core.tokenizer import Tokenizer
from ..isolation.fair_threads import FairThreads
from ..isolation.worker_pool import LimitExceeded, WorkerLimits, WorkerPool
from .grammar_compiler import Compiler, CompilerLimits
from .grammar_matcher import CompiledGrammar
from .response_grammar import ConstraintGrammar
from .trial_worker import Outcome, TrialSetup

if TYPE_CHECKING:
    from .ending_search import EndingSearch

_MAX_REJECTED = 4096
"""Maximum cached rejections, each a digest and a message."""


class BoundedCompiler:
    """A Compiler whose work is bounded. Not thread-safe: use it on one event loop.

    A grammar that is not evidently cheap is first compiled in a worker process. The
    process is killed if it takes too much time or memory, or if no request waits for it
    any longer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: Sequence[int],
        limits: CompilerLimits | None = None,
        worker_limits: WorkerLimits | None = None,
    ) -> None:
        self._compiler = Compiler(tokenizer, eos, limits=limits)
        self.pool = WorkerPool("dragoman.constraints.trial_worker", worker_limits, self._setup)
        # Threads of their own: compiling may take seconds, as the trial did, and must not
        # block other threads.
        self._repeats = FairThreads(self.pool.limits.processes, self.pool.limits.processes)
        self._rejected: OrderedDict[bytes, str] = OrderedDict()

    async def compile(self, grammar: ConstraintGrammar, owner: str = "") -> CompiledGrammar:
        """Compile a grammar.

        owner: whose turn the grammar waits for if it is costly.

        Raises:
            RequestError: the constraint is invalid, unsupported, unsatisfiable or too
                expensive; `param` names it.
            Overloaded: too many grammars are waiting to be compiled.
        """
        for (
            param,
            text,
        ) in grammar.parts:  # One by one: alternatives would hide an unsatisfiable part.
            await self._compile(text, param, grammar, owner)
        return await self._compile(grammar.text, grammar.param, grammar, owner)

    async def recompile(self, text: str, owner: str = "") -> CompiledGrammar:
        """Compile a grammar that another process of this server has already compiled
        within the bounds.

        owner: as of `compile`.

        Raises RequestError.
        """
        cached = self._compiler.find_compiled(text)
        if cached is not None:
            return cached
        return await self._repeat(text, None, 0, owner)

    @property
    def endings(self) -> EndingSearch:
        return self._compiler.endings

    def close(self) -> None:
        """Cancel the running compilations."""
        self.pool.close()

    async def _compile(
        self, text: str, param: str | None, grammar: ConstraintGrammar, owner: str
    ) -> CompiledGrammar:
        cached = self._compiler.find_compiled(text)
        if cached is not None:
            return cached
        if grammar.is_cheap:
            return await anyio.to_thread.run_sync(self._compiler.compile_text, text, param)
        encoded = text.encode("utf-8", "surrogatepass")
        # Rejections are cached by digest, because a rejected schema may have 64 KiB.
        digest = hashlib.sha256(encoded).digest()
        size = 0
        message = self._rejected.get(digest)
        if message is None:
            try:
                outcome = msgspec.msgpack.decode(await self.pool.run(encoded, owner), type=Outcome)
                size = outcome.memory
                message = (
                    "The constraint is too complex to be compiled."
                    if outcome.has_panicked
                    else outcome.error
                )
            except LimitExceeded as exceeded:
                suspects = f" (it has {', '.join(grammar.costly)})" if grammar.costly else ""
                message = f"The constraint takes too much {exceeded.resource} to compile{suspects}."
        if message is not None:
            self._rejected[digest] = message
            if len(self._rejected) > _MAX_REJECTED:
                self._rejected.popitem(last=False)
            raise RequestError(message, param=param)
        return await self._repeat(text, param, size, owner)

    async def _repeat(self, text: str, param: str | None, size: int, owner: str) -> CompiledGrammar:
        """Compile a grammar in this process, after its trial.

        size: as in `Compiler.compile_text`.
        """
        return await self._repeats.run(
            owner, lambda: self._compiler.compile_text(text, param, size)
        )

    def _setup(self) -> bytes:
        vocabulary = self._compiler.vocabulary
        return msgspec.msgpack.encode(
            TrialSetup(
                vocabulary.tokens,
                vocabulary.special_token_ids,
                vocabulary.eos,
                self._compiler.limits,
            )
        )
