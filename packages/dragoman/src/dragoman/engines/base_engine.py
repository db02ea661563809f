"""Base classes for third-party engines: everything that an engine needs except its own
`generate`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from operator import index
from pathlib import Path

from ..core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature
from ..core.engine import Health
from ..core.errors import ContextTooLong, EngineError, RequestError
from ..core.events import Event, FinishReason
from ..core.request import GenerateRequest
from ..core.request_checks import check_unenforced_tool_choice
from ..core.token_engine import (
    Ended,
    Failed,
    OutputCallback,
    Rejected,
    Sampled,
    Scheduled,
    TokenRequest,
)
from .active_sequences import ActiveSequence, ActiveSequences

log = logging.getLogger(__name__)

TOKEN_CAPABILITIES = Capabilities(
    frozenset({Feature.TOKEN_IDS, Feature.TOOLS}),
    frozenset({"stop_token_ids", "ignore_eos", "truncate_prompt"}),
)
"""The capabilities of a token engine that samples without constraints. The pipeline
implements the rest.
"""

CONSTRAINED_TOKEN_CAPABILITIES = Capabilities(
    TOKEN_CAPABILITIES.features | CONSTRAINT_FEATURES, TOKEN_CAPABILITIES.parameters
)
"""The capabilities of a token engine that samples only tokens that
`TokenRequest.matcher` allows.
"""


class BaseEngine(ABC):
    """An Engine with defaults: a subclass defines `generate`, and declares its features
    in `capabilities`.
    """

    capabilities: Capabilities = Capabilities()
    _is_started = False

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """See `Engine.generate`."""

    async def start(self) -> None:
        self._is_started = True

    async def stop(self) -> None:
        self._is_started = False

    def health(self) -> Health:
        return Health(
            ready=self._is_started, reason=None if self._is_started else "the engine is not running"
        )


class _TaskSequence(ActiveSequence):
    """A sequence and the task that generates it."""

    task: asyncio.Task[None]


class BaseTokenEngine(ABC):
    """A TokenEngine with defaults: a subclass defines `generate`, which streams the
    token ids of one sequence.

    The base class queues, counts, ends and aborts sequences. A subclass whose
    `generate` follows the request's matcher sets `capabilities` to
    CONSTRAINED_TOKEN_CAPABILITIES.
    """

    capabilities: Capabilities = TOKEN_CAPABILITIES

    def __init__(
        self, tokenizer: str | Path, max_model_len: int, *, max_sequences: int = 1024
    ) -> None:
        """Set the limits of the engine.

        Args:
            tokenizer: a directory with tokenizer.json, the chat template and
                generation_config.json.
            max_model_len: tokens of prompt and answer together.
            max_sequences: maximum number of concurrent sequences; further ones are
                rejected with QueueFull.
        """
        self.tokenizer = Path(tokenizer)
        self.max_model_len = max_model_len
        self.max_sequences = max_sequences
        self._active: ActiveSequences[_TaskSequence] = ActiveSequences()
        self._is_started = False

    @abstractmethod
    def generate(self, request: TokenRequest) -> AsyncGenerator[int | Sampled]:
        """Yield the next token ids of this sequence: plain, or as Sampled where they
        have logprobs.

        Called once per sequence; several run concurrently. It may yield forever: it is
        closed when the sequence ends. The matcher, if there is one, has accepted each
        token before the next one is requested. Work that takes longer than a
        millisecond belongs in a thread (`asyncio.to_thread`).

        Raises:
            RequestError: before the first token, if the request cannot be served.
            EngineError: the engine failed.
        """

    async def start(self) -> None:
        self._is_started = True

    async def stop(self) -> None:
        self._is_started = False
        tasks = [sequence.task for sequence in self._active.fail_all()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> Health:
        reason = None if self._is_started else "the engine is not running"
        return Health(ready=self._is_started, reason=reason, running=len(self._active))

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """See `TokenEngine.add`.

        Raises:
            Unsupported: a tool call is required but cannot be enforced.
        """
        if not self._is_started:
            raise EngineError("The engine is not running.")
        if len(request.prompt) >= self.max_model_len:
            raise ContextTooLong(
                limit=self.max_model_len, prompt=len(request.prompt), param="prompt"
            )
        if Feature.GRAMMAR not in self.capabilities.features:
            check_unenforced_tool_choice(request)
        self._active.check_admission(request.id, self.max_sequences)
        sequence = _TaskSequence(request, deliver)
        self._active.add(sequence)
        sequence.task = asyncio.get_running_loop().create_task(self._run(sequence))

    def abort(self, id: str) -> None:
        """See `TokenEngine.abort`."""
        sequence = self._active.pop(id)
        if sequence is not None:
            sequence.task.cancel()

    async def _run(self, sequence: _TaskSequence) -> None:
        request = sequence.request
        deliver = partial(self._active.deliver, sequence)
        count = 0
        get_time = asyncio.get_running_loop().time
        started_at = get_time()
        try:
            async with aclosing(self.generate(request)) as tokens:
                async for item in tokens:
                    # A token id may be an integer of numpy or torch.
                    sampled = (
                        item if isinstance(item, Sampled) else Sampled(request.id, index(item))
                    )
                    if sampled.token < 0:
                        raise EngineError(
                            f"The engine sampled {sampled.token}, an invalid token id."
                        )
                    if sampled.id != request.id:
                        sampled = Sampled(request.id, sampled.token, sampled.logprobs)
                    # Only now, since `generate` may reject the request until its first
                    # token.
                    if not count:
                        elapsed = get_time() - started_at
                        deliver(
                            Scheduled(
                                request.id, cached_tokens=0, written_tokens=0, elapsed=elapsed
                            )
                        )
                    count += 1
                    deliver(sampled)
                    end = _find_end(request, sampled.token, count)
                    if end is not None:
                        deliver(end)
                        return
                    # Let other tasks run even if the generator never waits.
                    await asyncio.sleep(0)
            if not count:
                deliver(Scheduled(request.id, cached_tokens=0, written_tokens=0))
            deliver(Ended(request.id, FinishReason.STOP))
        except RequestError as error:
            deliver(Failed(request.id, error.message) if count else Rejected(request.id, error))
        except EngineError as error:
            deliver(Failed(request.id, error.message))
        except BaseException:
            # Only our own cancellation ends the task; whatever else `generate` raises
            # is the engine's failure, even a CancelledError of an inner task or a
            # SystemExit, which would end the server.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("the engine failed on %s", request.id)
            deliver(Failed(request.id, "The engine failed; see the server's log."))


def _find_end(request: TokenRequest, token: int, count: int) -> Ended | Failed | None:
    """Find the end of a sequence after this token, its `count`-th. None if it goes on."""
    if token in request.stop_token_ids and count > request.min_tokens:
        return Ended(request.id, FinishReason.STOP, stop=token)
    if request.matcher is not None:
        if not request.matcher.advance(token):
            return Failed(
                request.id,
                f"The engine sampled token {token}, which the request's grammar does not allow.",
            )
        if request.matcher.finished:
            return Ended(request.id, FinishReason.STOP)
    return Ended(request.id, FinishReason.LENGTH) if count >= request.max_tokens else None
