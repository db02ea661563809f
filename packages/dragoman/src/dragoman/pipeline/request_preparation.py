"""Preparation of a request: it becomes a job, ready for the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from ..constraints.grammar_matcher import CompiledGrammar
from ..core.capabilities import Capabilities, Feature
from ..core.encoder_requests import (
    EncodingTask,
)
from ..core.engine import DirectEngine, Engine
from ..core.errors import ContextTooLong, Unsupported
from ..core.events import AppliedEdit, FinishReason
from ..core.matcher import Matcher
from ..core.message import Reasoning, Tool
from ..core.request import (
    AnyJsonObject,
    Conversation,
    Extras,
    GenerateRequest,
    JsonSchema,
)
from ..core.request_checks import check_ids
from ..core.syntax import ParseContext, ToolFormat
from ..core.token_engine import TokenEngine, TokenRequest
from ..parsers import registry
from .call_terms import CallTerms
from .capability_checks import check_request, find_part_types, find_support
from .choice_pipeline import ChoicePipeline
from .detokenizer import Vocabulary
from .engine_backends import (
    EmbedderBackend,
    EncoderBackend,
    EventBackend,
    ScorerBackend,
    TextEncoderBackend,
    TokenBackend,
    TranscriberBackend,
)
from .foreign_reasoning import drop_foreign_reasoning
from .infill_encoding import build_no_infill_error
from .label_tokens import find_label_tokens, replace_label_texts
from .prompt_encoding import EncodedPrompt, strip_reused_ids
from .prompt_length import check_text_length, estimate_prompt_tokens
from .prompt_truncation import build_dropped_warning, build_fitting_prompt, truncate_prompt
from .reasoning_budget import replace_budget_hint
from .request_plans import RequestPlan, build_plan_key
from .request_queue import QueueTicket
from .response_grammar import compile_grammar
from .sampling import (
    build_reasoning_budget,
    build_sampling,
    ends_in_reasoning,
    find_callable_tools,
)
from .served_model import ServedModel
from .stop_strings import StopStage

ChoiceFactory = Callable[[int], ChoicePipeline]
NO_IDS: frozenset[int] = frozenset()


class TokenJob(msgspec.Struct, frozen=True):
    """One prompt for a token engine: a TokenRequest and a ChoicePipeline per choice,
    all with the same prompt.

    generates_nothing: max_tokens is 0.
    limit_reason: the reason of an answer that reaches its token limit: whether the
        request or the context has set that limit.
    visible_control_ids: control tokens whose text the parsers need.
    applied_edits: as in `Started`.
    """

    engine: TokenEngine
    queue_ticket: QueueTicket
    vocabulary: Vocabulary
    eos: frozenset[int]
    prompt: tuple[int, ...]
    prompt_text: str
    requests: tuple[TokenRequest, ...]
    returns_prompt: bool
    generates_nothing: bool
    limit_reason: FinishReason
    visible_control_ids: frozenset[int]
    skips_special: bool
    choice_pipelines: tuple[ChoicePipeline, ...]
    applied_edits: tuple[AppliedEdit, ...] = ()


class EventJob(msgspec.Struct, frozen=True):
    """One prompt for an event engine.

    direct: the engine, if it can deliver events directly.
    request: the request, unrendered.
    parses_reasoning: one of our parsers separates reasoning from the text.
    build_choice: builds the pipeline of a choice.
    """

    engine: Engine
    direct: DirectEngine | None
    queue_ticket: QueueTicket
    request: GenerateRequest
    parses_reasoning: bool
    build_choice: ChoiceFactory


Job = TokenJob | EventJob


async def prepare_job(
    model: ServedModel, request: GenerateRequest, terms: CallTerms, index: int = 0
) -> tuple[Job, list[str]]:
    """Return the job, and warnings for the client. Nothing has reached the engine yet.

    index: index of this prompt within its call.

    Raises:
        RequestError: the request cannot be served.
    """
    backend = model.backend
    renders_prompt = isinstance(backend, TokenBackend)
    if not renders_prompt and not isinstance(backend, EventBackend):
        raise build_no_generation_error(backend)
    capabilities = backend.engine.capabilities
    prompt = request.prompt
    replacement_warnings: tuple[str, ...] = ()
    if isinstance(prompt, Conversation) and prompt.reasoning.budget_is_hint:
        request, replacement_warnings = replace_budget_hint(model, request, terms)
    if request.logprob_texts:
        request, label_warnings = replace_label_texts(request, capabilities, terms.max_logprobs)
        replacement_warnings += label_warnings
    plan = _find_plan(model, request, terms, capabilities)
    part_types = find_part_types(request.prompt)
    warnings = check_request(request, plan.support, part_types, capabilities, terms)
    warnings += replacement_warnings
    if Reasoning in part_types and isinstance(request.prompt, Conversation):
        conversation, foreign = drop_foreign_reasoning(request.prompt, capabilities)
        request = msgspec.structs.replace(request, prompt=conversation) if foreign else request
        warnings += foreign
    if renders_prompt:
        check_text_length(request, model.max_model_len, backend.tokenizer.longest_token)
    # Paced only now: a request that is certain to be rejected must not delay others.
    if terms.begin_start is not None and (waiter := terms.begin_start()) is not None:
        await waiter
    # Checked before rendering, the most expensive step of a request: under overload a
    # rejection must be cheap.
    model.queues.generation.check_capacity(terms.queue_share)
    tool_format = model.formats.tools
    if not renders_prompt:
        if not capabilities.native_tools and tool_format is None and plan.tools:
            _select_default_format(model, request, warnings, can_enforce=False)
        if isinstance(request.prompt, Conversation) and request.prompt.drop_oldest:
            warnings.append("truncation is ignored: this model's engine builds its own prompts")
        if isinstance(request.prompt, Conversation) and request.prompt.edits:
            warnings.append(
                "context_management is ignored: this model's engine builds its own prompts"
            )
        return _build_event_job(model, backend.engine, request, terms, plan.tools), warnings
    if tool_format is None and plan.tools:
        tool_format = _select_default_format(model, request, warnings)
    preparation = _TokenPreparation(
        model, backend, request, terms, index, warnings, tool_format, plan
    )
    return await preparation.build_job(), warnings


def _find_plan(
    model: ServedModel, request: GenerateRequest, terms: CallTerms, capabilities: Capabilities
) -> RequestPlan:
    """Return the plan of a request's fields, from the model's cache or built."""
    # These parameters are different in every request.
    is_unique = request.extras.kv_transfer_params is not None
    key = None if is_unique else build_plan_key(request, terms)
    plan = None if is_unique else model.plans.find(key, capabilities)
    if plan is None:
        checked = request
        if request.suffix is not None:
            if not model.supports_suffix:
                raise build_no_infill_error()
            # The pipeline encodes the suffix itself if the model has tokens for it.
            if model.infill_tokens is not None:
                checked = msgspec.structs.replace(request, suffix=None)
        renders_prompt = isinstance(model.backend, TokenBackend)
        support = find_support(checked, capabilities, terms, renders_prompt=renders_prompt)
        plan = RequestPlan(capabilities, support, find_callable_tools(request))
        if not is_unique:
            model.plans.add(key, plan)
    return plan


def _select_default_format(
    model: ServedModel, request: GenerateRequest, warnings: list[str], *, can_enforce: bool = True
) -> ToolFormat | None:
    """Select the format of tool calls for a model whose own format is unknown.

    A call that the request demands is enforced in a default format; vLLM enforces
    `required` and named tools the same way. A call that is not demanded could not be
    distinguished from text.

    Raises:
        Unsupported: a call is demanded and nothing can enforce it.
    """
    assert isinstance(request.prompt, Conversation)
    if request.prompt.tool_choice.mode != "required":
        warnings.append(
            "tools: this model has no known tool call format, so calls are returned as text; set "
            "--tool-call-parser"
        )
        return None
    if not can_enforce or Feature.GRAMMAR not in model.capabilities.features:
        raise Unsupported(
            "A tool call cannot be enforced: this model has no known tool call format "
            "(--tool-call-parser), and its "
            "engine does not support grammars. Use `tool_choice: auto`.",
            param="tool_choice",
        )
    return registry.find_tool_format(registry.DEFAULT_TOOL_FORMAT)


def _build_event_job(
    model: ServedModel,
    engine: Engine,
    request: GenerateRequest,
    terms: CallTerms,
    callable_tools: tuple[Tool, ...],
) -> EventJob:
    capabilities = model.capabilities
    reasoning = None if capabilities.native_reasoning else model.formats.reasoning
    tools = None if capabilities.native_tools else model.formats.tools
    context = ParseContext("", callable_tools, terms.new_id)

    def build_choice(choice: int) -> ChoicePipeline:
        parser = registry.create_parser(reasoning, tools, context) if reasoning or tools else None
        return ChoicePipeline(
            parser,
            None if "stop" in capabilities.parameters else _build_stop_stage(request, choice),
        )

    ticket = build_ticket(model, request, terms, estimate_prompt_tokens(request))
    # The owner's salt, hashed so that it does not identify the owner: owners never
    # share a prefix cache.
    if terms.cache_salt and "cache_salt" in capabilities.parameters:
        salt = hashlib.sha256(
            f"{terms.cache_salt}\n{request.cache_salt}".encode("utf-8", "surrogatepass")
        ).hexdigest()
        request = msgspec.structs.replace(request, cache_salt=salt)
    priority = find_engine_priority(request, terms)
    if request.priority != priority:
        request = msgspec.structs.replace(request, priority=priority)
    return EventJob(
        engine, model.interfaces.direct, ticket, request, reasoning is not None, build_choice
    )


def build_ticket(
    model: ServedModel, request: GenerateRequest, terms: CallTerms, tokens: int
) -> QueueTicket:
    # Engines without priorities serve requests in the order of their arrival.
    priority = request.priority
    if priority and "priority" not in model.capabilities.parameters:
        priority = 0
    return QueueTicket(
        model.queues.generation, terms.queue_share, tokens, priority, terms.is_background
    )


def find_engine_priority(request: GenerateRequest, terms: CallTerms) -> int:
    """Return the priority of a request in the engine, which compares the requests of
    all keys.

    A client's priority orders the waiting requests of its own key. In the engine, it
    would take KV blocks from the running requests of other keys.
    """
    return 0 if terms.queue_share.name and not terms.is_background else request.priority


def _find_stops(request: GenerateRequest) -> tuple[str, ...]:
    """Return the request's stop strings; none for structured output, as they could
    truncate the JSON.
    """
    return () if isinstance(request.constraint, AnyJsonObject | JsonSchema) else request.limits.stop


def _build_stop_stage(request: GenerateRequest, choice: int) -> StopStage | None:
    stops = _find_stops(request)
    limits = request.limits
    return (
        StopStage(choice, stops, includes_stop=limits.include_stop, min_tokens=limits.min_tokens)
        if stops
        else None
    )


class _TokenPreparation(msgspec.Struct, frozen=True):
    """The steps from a request to a TokenJob, in the order in which `build_job` runs
    them.
    """

    model: ServedModel
    backend: TokenBackend
    request: GenerateRequest
    terms: CallTerms
    index: int
    warnings: list[str]
    tool_format: ToolFormat | None
    plan: RequestPlan

    async def build_job(self) -> TokenJob:
        model = self.model
        backend = self.backend
        request = self.request
        fitting_prompt = await build_fitting_prompt(
            backend, request, self.terms, model.max_model_len
        )
        limits = request.limits
        encoded = (
            fitting_prompt
            if limits.truncate_prompt is None
            else truncate_prompt(fitting_prompt, request, model.max_model_len)
        )
        if encoded.n_dropped:
            self.warnings.append(build_dropped_warning(encoded.n_dropped, model.max_model_len))
        for name in encoded.ignored_options:
            self.warnings.append(f"{name} is ignored: this model's chat template does not use it")
        if limits.stop and not _find_stops(request):
            self.warnings.append(
                "stop is ignored: it would truncate the JSON of the response format"
            )
        max_tokens, limit_reason = self._limit_max_tokens(len(encoded.ids))
        tools = self.plan.tools
        grammar: CompiledGrammar | None = None
        if (
            request.constraint is not None or tools
        ) and Feature.GRAMMAR in model.capabilities.features:
            grammar = await compile_grammar(
                model,
                backend,
                request,
                self.tool_format,
                encoded.prompt_tail,
                self.warnings,
                owner=self.terms.queue_share.name,
                is_strict=self.terms.is_strict,
            )
        # Requests share the model's set unless they need another.
        end_ids = backend.eos | encoded.end_ids if encoded.end_ids else backend.eos
        requests = self._build_requests(encoded, max_tokens, grammar, end_ids)
        reasoning = model.formats.reasoning
        parses = isinstance(request.prompt, Conversation) and (
            reasoning is not None or self.tool_format is not None
        )
        choice_pipelines: list[ChoicePipeline] = []
        for choice in range(len(requests)):
            parser = None
            if parses:
                context = ParseContext(encoded.prompt_tail, tools, self.terms.new_id)
                parser = registry.create_parser(reasoning, self.tool_format, context)
            stops = _build_stop_stage(request, choice) if limits.stop else None
            choice_pipelines.append(ChoicePipeline(parser, stops))
        return TokenJob(
            engine=backend.engine,
            queue_ticket=build_ticket(model, request, self.terms, len(encoded.ids)),
            vocabulary=backend.vocabulary,
            eos=end_ids,
            prompt=encoded.ids,
            prompt_text=encoded.text,
            requests=requests,
            returns_prompt=request.return_prompt or request.prompt_logprobs is not None,
            generates_nothing=max_tokens == 0,
            limit_reason=limit_reason,
            visible_control_ids=self.model.parser_tokens.markers,
            skips_special=not request.special_tokens_in_text,
            choice_pipelines=tuple(choice_pipelines),
            applied_edits=encoded.applied_edits,
        )

    def _limit_max_tokens(self, prompt: int) -> tuple[int, FinishReason]:
        """Return the maximum number of tokens to generate, and the reason of an answer
        that has so many. Raises ContextTooLong if not even one fits.

        prompt: number of tokens of the prompt.
        """
        limit = self.model.max_model_len
        requested = self.request.limits.max_tokens
        available = limit - prompt
        if available < (0 if requested == 0 else 1):
            raise ContextTooLong(limit=limit, prompt=prompt, param=find_prompt_param(self.request))
        allowed = self.model.defaults.max_new_tokens if requested is None else requested
        if allowed is not None and allowed <= available:
            return allowed, FinishReason.LENGTH
        if requested is not None:
            self.warnings.append(
                f"max_tokens is reduced from {requested} to {available}: the context has {limit} "
                f"tokens"
            )
        return available, FinishReason.CONTEXT_LENGTH

    def _build_requests(
        self,
        encoded: EncodedPrompt,
        max_tokens: int,
        grammar: CompiledGrammar | None,
        end_ids: frozenset[int],
    ) -> tuple[TokenRequest, ...]:
        """end_ids: the ids that end a response: the model's, and those of the prompt."""
        request = self.request
        plan = self.plan
        limits = self.request.limits
        if request.logprob_ids:
            check_ids(request.logprob_ids, self.backend.tokenizer.vocab_size, "logprob_token_ids")
        candidates = max(request.choices, request.best_of or 0)
        # best_of ranks candidates by likelihood, so it needs logprobs even if the
        # client does not.
        logprobs = (
            0 if request.logprobs is None and candidates > request.choices else request.logprobs
        )
        closes_at_limit = grammar is not None and self._closes_at_limit
        matchers: list[Matcher | None] = [None] * candidates
        if grammar is not None:
            endings = self.backend.compiler.endings
            matchers = [
                grammar.build_closing_matcher(endings, max_tokens)
                if closes_at_limit
                else grammar.build_matcher()
                for _ in range(candidates)
            ]
        stop_token_ids = NO_IDS if limits.ignore_eos else end_ids
        if limits.stop_token_ids:
            stop_token_ids = stop_token_ids.union(limits.stop_token_ids)
        if plan.sampling is None or plan.extras is None:
            plan.sampling = build_sampling(self.model, self.backend, request, plan.tools)
            plan.extras = self._select_extras()
        prompt = request.prompt
        vision = self.backend.vision
        first = TokenRequest(
            id=f"{self.terms.answer_id}-{self.index}-0",
            prompt=encoded.ids,
            # Engines cannot generate zero tokens: the sequence is aborted when the
            # prompt is in the cache.
            max_tokens=max(1, max_tokens),
            sampling=plan.sampling,
            # The context may have reduced `max_tokens` below `min_tokens`; an engine
            # would never end such a sequence.
            min_tokens=min(limits.min_tokens, max_tokens),
            stop_token_ids=stop_token_ids,
            logprobs=logprobs,
            logprob_ids=self._find_label_ids(encoded)
            if request.logprob_texts
            else request.logprob_ids,
            prompt_logprobs=request.prompt_logprobs,
            matcher=matchers[0],
            grammar=None if grammar is None else grammar.text,
            closes_at_limit=closes_at_limit,
            reasoning_budget=None
            if not isinstance(prompt, Conversation) or prompt.reasoning.budget is None
            else build_reasoning_budget(
                self.model, self.backend, prompt.reasoning.budget, encoded.prompt_tail
            ),
            priority=find_engine_priority(request, self.terms) if request.priority else 0,
            # The separator is a line break, which no owner's salt contains, so two
            # different pairs never join to the same text.
            cache_salt=f"{self.terms.cache_salt}\n{request.cache_salt}",
            extras=plan.extras,
            origin=request,
            images=()
            if vision is None or not encoded.images
            else vision.locate(encoded.ids, encoded.images),
            arrival_time=self.terms.arrival_time,
            trace=request.trace,
        )
        if candidates == 1:
            return (first,)
        # Choice k of a seeded request uses seed + k, as in vLLM.
        seed = first.sampling.seed
        others = [
            msgspec.structs.replace(
                first,
                id=f"{self.terms.answer_id}-{self.index}-{choice}",
                sampling=msgspec.structs.replace(
                    first.sampling, seed=None if seed is None else seed + choice
                ),
                prompt_logprobs=None,
                choice=choice,
                matcher=matchers[choice],
            )
            for choice in range(1, candidates)
        ]
        return (first, *others)

    def _find_label_ids(self, encoded: EncodedPrompt) -> tuple[int, ...]:
        """Return the ids of the request, and those of its texts. Raises Unsupported."""
        request = self.request
        reasoning = self.model.formats.reasoning
        if reasoning is not None and ends_in_reasoning(reasoning.syntax, encoded.prompt_tail):
            raise Unsupported(
                "This model reasons before every answer, so its first token answers nothing.",
                param="model",
            )
        labels = find_label_tokens(self.backend.tokenizer, encoded.ids, request.logprob_texts)
        return tuple(dict.fromkeys((*request.logprob_ids, *labels)))

    @property
    def _closes_at_limit(self) -> bool:
        closes = self.request.limits.close_at_limit
        closes = self.terms.close_at_limit if closes is None else closes
        return closes and "close_at_limit" in self.model.capabilities.parameters

    def _select_extras(self) -> Extras:
        """Return the extras that the engine supports; `check_request` has warned about
        the others.
        """
        extras = self.request.extras
        names = extras.list_set_fields()
        if not names:
            return extras
        supported = self.model.capabilities.parameters
        changes: dict[str, object] = {name: None for name in names if name not in supported}
        if extras.kv_transfer_params is not None and "kv_transfer_params" in supported:
            changes["kv_transfer_params"] = strip_reused_ids(extras.kv_transfer_params)
        return msgspec.structs.replace(extras, **changes)


def find_prompt_param(request: GenerateRequest) -> str:
    return "messages" if isinstance(request.prompt, Conversation) else "prompt"


_EMBEDDINGS = "/v1/embeddings"


def build_no_generation_error(backend: EncoderBackend) -> Unsupported:
    match backend:
        case TranscriberBackend():
            route = "/v1/audio/transcriptions"
        case EmbedderBackend():
            route = _EMBEDDINGS
        case TextEncoderBackend(engine) if EncodingTask.EMBEDDINGS in engine.encoding_tasks:
            route = _EMBEDDINGS
        case ScorerBackend() | TextEncoderBackend():
            route = "/rerank or /score"
    return Unsupported(f"This model does not generate text: use {route}.", param="model")
