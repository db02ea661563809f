"""Makes a job of a request: the prompt's ids, where it ends, what it may say, and how to read what it says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ..constraints.matcher import Compiled
from ..core.engine import Capabilities, Engine, Feature, TokenEngine, TokenRequest
from ..core.errors import ContextTooLong
from ..core.events import Edited
from ..core.request import Conversation, GenerateRequest, JsonObject, JsonSchema
from ..core.syntax import ParseContext
from ..core.vision import ShownImage
from ..parsers import registry
from .admission import Terms, check, check_text_length, param_of
from .choosing import callable_tools, sampling_of, thought_limit
from .embedding import does_not_generate
from .fitting import dropped_warning, prompt_that_fits
from .grammar import compose_for
from .models import EmbedderBackend, EventBackend, ScorerBackend, ServedModel, TokenBackend
from .prompting import Prompted, truncated
from .stops import StopStage
from .strand import Strand
from .text import Vocabulary
from .waiting import WaitingRoom

MakeStrand = Callable[[int], Strand]
NO_IDS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TokenJob:
    """One prompt for an engine of tokens; a TokenRequest and a strand for each choice, all with the same prompt.

    nothing_to_say: max_tokens was 0. keep: control tokens whose text the parsers need. edited: as in `Started`.
    """

    engine: TokenEngine
    room: WaitingRoom
    vocabulary: Vocabulary
    eos: frozenset[int]
    prompt: tuple[int, ...]
    prompt_text: str
    requests: tuple[TokenRequest, ...]
    return_prompt: bool
    nothing_to_say: bool
    keep: frozenset[int]
    skip_special: bool
    strands: tuple[Strand, ...]
    edited: tuple[Edited, ...] = ()

    @property
    def scored(self) -> bool:
        """The prompt's logprobs are asked for, once, with the first choice."""
        return self.requests[0].prompt_logprobs is not None


@dataclass(frozen=True, slots=True)
class EventJob:
    """One prompt for an engine of events. parses: a parser of ours tells reasoning from its text."""

    engine: Engine
    request: GenerateRequest
    parses: bool
    strand: MakeStrand


Job = TokenJob | EventJob


async def prepare(model: ServedModel, request: GenerateRequest, terms: Terms, index: int = 0) -> tuple[Job, list[str]]:
    """The job, and warnings for the client. index: of this prompt within its call.

    Raises RequestError and its children; nothing has reached the engine then.
    """
    backend = model.backend
    if isinstance(backend, EmbedderBackend | ScorerBackend):
        raise does_not_generate(backend)
    warnings = check(request, model.capabilities, terms, rendered_here=isinstance(backend, TokenBackend))
    if isinstance(backend, EventBackend):
        if isinstance(request.prompt, Conversation) and request.prompt.drop_oldest:
            warnings.append("truncation is ignored: this model's engine builds its own prompts")
        if isinstance(request.prompt, Conversation) and request.prompt.edits:
            warnings.append("context_management is ignored: this model's engine builds its own prompts")
        return _event_job(model, backend.engine, request, terms), warnings
    preparation = _TokenPreparation(model, backend, request, terms, index, warnings)
    return await preparation.job(), warnings


def _event_job(model: ServedModel, engine: Engine, request: GenerateRequest, terms: Terms) -> EventJob:
    native = model.capabilities
    reasoning = None if native.native_reasoning else model.reasoning
    tools = None if native.native_tools else model.tools
    context = ParseContext("", callable_tools(request), terms.new_id)

    def strand(choice: int) -> Strand:
        parser = registry.parser(reasoning, tools, context) if reasoning or tools else None
        return Strand(parser, None if "stop" in native.parameters else _stop_stage(request, choice))

    return EventJob(engine, _salted(request, native, terms), reasoning is not None, strand)


def _salted(request: GenerateRequest, capabilities: Capabilities, terms: Terms) -> GenerateRequest:
    """Different owners share no prefix cache, wherever it is. The salt tells nobody there who they are."""
    if not terms.cache_salt or "cache_salt" not in capabilities.parameters:
        return request
    salt = hashlib.sha256(f"{terms.cache_salt}\n{request.cache_salt}".encode("utf-8", "surrogatepass")).hexdigest()
    return msgspec.structs.replace(request, cache_salt=salt)


def _stops(request: GenerateRequest) -> tuple[str, ...]:
    """A stop string never cuts the JSON that was asked for."""
    return () if isinstance(request.constraint, JsonObject | JsonSchema) else request.limits.stop


def _stop_stage(request: GenerateRequest, choice: int) -> StopStage | None:
    stops, limits = _stops(request), request.limits
    return StopStage(choice, stops, include=limits.include_stop, min_tokens=limits.min_tokens) if stops else None


@dataclass(frozen=True, slots=True)
class _TokenPreparation:
    """The steps from a request to a TokenJob, in the order in which `job` takes them."""

    model: ServedModel
    backend: TokenBackend
    request: GenerateRequest
    terms: Terms
    index: int
    warnings: list[str]

    async def job(self) -> TokenJob:
        model, backend, request = self.model, self.backend, self.request
        backend.room.check()
        check_text_length(request, model.max_model_len, backend.tokenizer.longest_token)
        fitting = await prompt_that_fits(backend, request, self.terms, model.max_model_len)
        prompted = truncated(fitting, request, model.max_model_len)
        if prompted.dropped:
            self.warnings.append(dropped_warning(prompted.dropped, model.max_model_len))
        for name in prompted.ignored:
            self.warnings.append(f"{name} is ignored: this model's chat template does not use it")
        if request.limits.stop and not _stops(request):
            self.warnings.append("stop is ignored: it would truncate the JSON of the response format")
        max_tokens = self._max_tokens(len(prompted.ids))
        requests = self._sequences(prompted, max_tokens, await self._compile(prompted))
        return TokenJob(
            engine=backend.engine,
            room=backend.room,
            vocabulary=backend.vocabulary,
            eos=backend.eos,
            prompt=prompted.ids,
            prompt_text=prompted.text,
            requests=requests,
            return_prompt=request.return_prompt or request.prompt_logprobs is not None,
            nothing_to_say=max_tokens == 0,
            keep=self.model.markers,
            skip_special=not request.special_tokens_in_text,
            strands=self._strands(prompted, len(requests)),
            edited=prompted.edited,
        )

    def _max_tokens(self, prompt: int) -> int:
        """Tokens that the answer may have. Raises ContextTooLong if not even one fits."""
        limit, asked = self.model.max_model_len, self.request.limits.max_tokens
        left = limit - prompt
        if left < (0 if asked == 0 else 1):
            raise ContextTooLong(limit=limit, prompt=prompt, param=param_of(self.request))
        if asked is None:
            default = self.model.max_new_tokens
            return left if default is None else min(left, default)
        if asked > left:
            self.warnings.append(f"max_tokens is reduced from {asked} to {left}: the context has {limit} tokens")
        return min(asked, left)

    async def _compile(self, prompted: Prompted) -> Compiled | None:
        if self.request.constraint is None and not callable_tools(self.request):
            return None
        if Feature.GRAMMAR not in self.model.capabilities.features:
            return None
        return await compose_for(self.model, self.backend, self.request, prompted.tail, self.warnings)

    def _sequences(self, prompted: Prompted, max_tokens: int, compiled: Compiled | None) -> tuple[TokenRequest, ...]:
        request, limits = self.request, self.request.limits
        candidates = max(request.choices, request.best_of or 0)
        # Candidates are compared by likelihood, so that they need logprobs even if the client does not.
        logprobs = 0 if request.logprobs is None and candidates > request.choices else request.logprobs
        first = TokenRequest(
            id=f"{self.terms.answer_id}-{self.index}-0",
            prompt=prompted.ids,
            max_tokens=max(1, max_tokens),
            sampling=sampling_of(self.model, self.backend, request),
            min_tokens=min(limits.min_tokens, max_tokens),
            stop_token_ids=self._stop_ids(),
            logprobs=logprobs,
            prompt_logprobs=request.prompt_logprobs,
            matcher=None if compiled is None else compiled.matcher(),
            grammar=None if compiled is None else compiled.text,
            thought=thought_limit(self.model, self.backend, request, prompted.tail),
            priority=request.priority,
            cache_salt=f"{self.terms.cache_salt}\n{request.cache_salt}",
            extras=self._extras(),
            asked=request,
            images=self._placed(prompted),
        )
        return (first, *(self._candidate(first, choice, compiled) for choice in range(1, candidates)))

    def _placed(self, prompted: Prompted) -> tuple[ShownImage, ...]:
        vision = self.backend.vision
        return () if vision is None or not prompted.images else vision.place(prompted.ids, prompted.images)

    def _extras(self) -> tuple[tuple[str, str], ...]:
        """What the engine honours: of the others `check` has said that they are ignored."""
        honoured = self.model.capabilities.parameters
        return tuple((name, value) for name, value in self.request.extras.items() if name in honoured)

    def _stop_ids(self) -> frozenset[int]:
        limits = self.request.limits
        eos = NO_IDS if limits.ignore_eos else self.backend.eos
        return eos.union(limits.stop_token_ids) if limits.stop_token_ids else eos

    def _candidate(self, first: TokenRequest, choice: int, compiled: Compiled | None) -> TokenRequest:
        """Choice k of a seeded request has the seed plus k, as in vLLM: choice 0 says what it says alone."""
        seed = first.sampling.seed
        return msgspec.structs.replace(
            first,
            id=f"{self.terms.answer_id}-{self.index}-{choice}",
            sampling=msgspec.structs.replace(first.sampling, seed=None if seed is None else seed + choice),
            prompt_logprobs=None,
            choice=choice,
            matcher=None if compiled is None else compiled.matcher(),
        )

    def _strands(self, prompted: Prompted, choices: int) -> tuple[Strand, ...]:
        model, request = self.model, self.request
        context = ParseContext(prompted.tail, callable_tools(request), self.terms.new_id)
        talks = isinstance(request.prompt, Conversation)
        return tuple(
            Strand(
                registry.parser(model.reasoning, model.tools, context) if talks else None,
                _stop_stage(request, choice),
            )
            for choice in range(choices)
        )
