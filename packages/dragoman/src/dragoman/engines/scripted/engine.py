"""An engine that replies from a script, from directives in the prompt, or both.

For demos, bug reports and tests: it records its requests. Token ids and counts are
real, but there is no model; a prompt is counted as a plain transcript, since there is
no chat template.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count

from ...core.capabilities import Capabilities, Feature
from ...core.engine import Health
from ...core.errors import ConnectionDropped, EngineError
from ...core.events import (
    Event,
    Finished,
)
from ...core.request import Conversation, GenerateRequest
from ...core.tokenizer import Tokenizer
from ..script.directives import build_default_reply, parse_directives, to_conversation
from ..script.match_rule import build_subject
from ..script.script import (
    Drop,
    Fail,
    Script,
    ScriptEntry,
    Wait,
)
from ..script.script_state import ScriptSource, ScriptState
from ..script.scripted_error import build_error
from .prompt_transcript import TokenizedPrompt, render_prompt, tokenize_prompt
from .response_events import generate_events

FEATURES = frozenset(
    {
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.CHOICE,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.TOKEN_IDS,
        Feature.REASONING_BUDGET,
        Feature.IMAGES,
        Feature.AUDIO,
        Feature.FILES,
    }
)
# A token of probability 1 is unaffected by temperature, truncation, penalties and seed,
# so they count as supported.
PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "max_tokens",
        "reasoning_effort",
        "enable_thinking",
        "chat_template_kwargs",
        "detail",
    }
)
MAX_LOGPROBS = 20
_LONG_TEXT_CHARACTERS = 8_192
"""Longer texts are tokenized on a thread: they take milliseconds."""
_EVENTS_PER_YIELD = 64
"""Events after which the generator yields to the event loop."""


class ScriptedEngine:
    """An engine that replies from a script.

    requests: the most recent `history_size` requests, oldest first.
    num_requests: total number of requests.
    num_closed_early: number of requests closed before their end.
    num_running: number of requests in progress.
    """

    def __init__(
        self,
        script: Script | ScriptSource | None = None,
        *,
        tokenizer: Tokenizer,
        directives: bool = False,
        max_model_len: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] | None = None,
        native: bool = True,
        history_size: int = 1000,
    ) -> None:
        """script: the replies, or what chooses the reply to each request.
        new_id: creates ids for tool calls without one; by default call_1, call_2,
            ...

        native: False means that texts are raw model output, to be parsed by the
            pipeline.
        """
        source = script or Script()
        self._source = ScriptState(source) if isinstance(source, Script) else source
        self._tokenizer = tokenizer
        self._directives = directives
        self._max_model_len = max_model_len
        self._sleep = sleep
        numbers = count(1)
        self._new_id = new_id or (lambda: f"call_{next(numbers)}")
        self._capabilities = Capabilities(
            FEATURES, PARAMETERS, MAX_LOGPROBS, native, native, max_alternatives=1
        )
        self._delays: set[asyncio.Future[None]] = set()
        self._stopped = False
        self.requests: deque[GenerateRequest] = deque(maxlen=history_size)
        self.num_requests = self.num_closed_early = self.num_running = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        for delay in self._delays:
            delay.cancel()

    def health(self) -> Health:
        return Health(
            not self._stopped, "stopped" if self._stopped else None, running=self.num_running
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        self.requests.append(request)
        self.num_requests += 1
        self.num_running += 1
        has_finished = False
        try:
            text = render_prompt(request, self._tokenizer)
            entry = self._find_entry(request, text)
            steps = generate_events(
                request,
                entry,
                await self._tokenize_prompt(request, text, self._max_model_len),
                tokenizer=self._tokenizer,
                new_id=self._new_id,
                max_model_len=self._max_model_len,
            )
            for number, step in enumerate(steps, 1):
                if isinstance(step, Fail):
                    raise build_error(step)
                if isinstance(step, Drop):
                    raise ConnectionDropped("The script requested a lost connection.")
                if isinstance(step, Wait):
                    await self._delay(step.seconds)
                    continue
                # Without delays the generator never suspends, and would block all other
                # requests.
                if number % _EVENTS_PER_YIELD == 0:
                    await asyncio.sleep(0)
                self._check_running()
                has_finished = isinstance(step, Finished)
                yield step
        except (GeneratorExit, asyncio.CancelledError):
            # A consumer may stop at Finished without exhausting the generator.
            self.num_closed_early += not has_finished
            raise
        finally:
            self.num_running -= 1

    async def count_prompt_tokens(self, request: GenerateRequest) -> int:
        """Count the tokens of a prompt; no script entry is used."""
        text = render_prompt(request, self._tokenizer)
        return len((await self._tokenize_prompt(request, text, None)).ids)

    def _find_entry(self, request: GenerateRequest, text: str) -> ScriptEntry:
        if self._directives:
            conversation = (
                request.prompt
                if isinstance(request.prompt, Conversation)
                else to_conversation(text)
            )
            entry = parse_directives(conversation)
            if entry is not None or self._source.is_empty:
                return entry or build_default_reply(conversation)
        return self._source.next_entry(build_subject(request, text))

    async def _tokenize_prompt(
        self, request: GenerateRequest, text: str, limit: int | None
    ) -> TokenizedPrompt:
        """Tokenize the prompt; a long one on a thread, so that it does not block the
        event loop.
        """
        if len(text) < _LONG_TEXT_CHARACTERS:
            return tokenize_prompt(request, text, self._tokenizer, limit)
        return await asyncio.to_thread(tokenize_prompt, request, text, self._tokenizer, limit)

    def _check_running(self) -> None:
        if self._stopped:
            raise EngineError("The engine was stopped.")

    async def _delay(self, seconds: float) -> None:
        """Sleep. Raises EngineError if the engine is stopped meanwhile."""
        delay = asyncio.ensure_future(self._sleep(seconds))
        self._delays.add(delay)
        try:
            # If `stop` cancels the delay, awaiting it would raise CancelledError, as if
            # the request were cancelled.
            await asyncio.wait({delay})
        finally:
            self._delays.discard(delay)
            delay.cancel()
        self._check_running()
        delay.result()
