"""Entry point: runs the requests of a call on a model and merges them into one stream of event batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import Struct

from ..core.events import Event
from ..core.request import GenerateRequest
from ..prompts.tokenizer import find_ids_since_control
from .admission import CallTerms
from .engine_calls import limit_time
from .event_run import EventRun
from .lifecycle import Lease
from .merge import merge_choices, merge_prompts, select_best
from .metrics import ModelMetrics, RequestMetrics, measure
from .models import ServedModel, TokenBackend
from .prepare import NO_IDS, EventJob, Job, TokenJob, prepare_job
from .token_run import TokenRun

DirectRun = TokenRun | EventRun
"""A run to which a receiver can be attached."""


class AdmittedRun(Struct, frozen=True):
    """An admitted call. Nothing has reached the engine until `batches` is iterated; closing it cancels the call.

    batches: the events.
    warnings: for the client.
    is_admitted: only overload or a failure can still reject the call, so that response headers need not wait long.
    control_ids: of the model's tokenizer; empty where the engine reports no ids.
    jobs: one per prompt.
    direct: the run whose batches these are, where a receiver may be attached to it; None where they are of several.
    """

    batches: AsyncGenerator[list[Event]]
    warnings: tuple[str, ...]
    is_admitted: bool
    control_ids: frozenset[int] = frozenset()
    jobs: tuple[Job, ...] = ()
    direct: DirectRun | None = None

    def find_resume_ids(self) -> tuple[int, ...] | None:
        """The ids of the first prompt since its last control token, see `prompts.token_replay`; None where the engine
        reports no ids.
        """
        job = self.jobs[0] if self.jobs else None
        return find_ids_since_control(job.prompt, self.control_ids) if isinstance(job, TokenJob) else None


async def admit(
    model: ServedModel, requests: Sequence[GenerateRequest], terms: CallTerms, metrics: ModelMetrics | None = None
) -> AdmittedRun:
    """Admit a call.

    requests: one per prompt.
    metrics: counts the requests; None for no metrics.

    Raises:
        RequestError: the call is rejected before the engine is involved.
    """
    request_metrics = [None] * len(requests)
    if metrics is not None:
        request_metrics = [metrics.start_request(model) for _ in requests]
    # Preparing awaits; the lease in the returned batches takes over before this one ends.
    with model.keep_loaded():
        return await _prepare_call(model, requests, terms, request_metrics)


async def _prepare_call(
    model: ServedModel,
    requests: Sequence[GenerateRequest],
    terms: CallTerms,
    request_metrics: Sequence[RequestMetrics | None],
) -> AdmittedRun:
    jobs: list[Job] = []
    warnings: dict[str, None] = {}
    for index, request in enumerate(requests):
        job, job_warnings = await prepare_job(model, request, terms, index)
        jobs.append(job)
        warnings |= dict.fromkeys(job_warnings)
    streams = [_build_stream(model, *prompt_args) for prompt_args in zip(jobs, requests, request_metrics, strict=True)]
    batches = merge_prompts([stream for stream, _ in streams])
    if terms.timeout is not None:
        batches = limit_time(batches, terms.timeout)
    # The outermost of these layers, so that the model stays loaded until every inner generator has been closed.
    if model.usage_guard is not None:
        batches = Lease(model.usage_guard, batches)
    admitted = isinstance(model.backend, TokenBackend)
    control_ids = model.backend.tokenizer.control_ids if isinstance(model.backend, TokenBackend) else NO_IDS
    # A merge of several prompts reads from queues, so their events cannot be handed on directly.
    direct = streams[0][1] if len(streams) == 1 else None
    return AdmittedRun(batches, tuple(warnings), admitted, control_ids, tuple(jobs), direct)


def _build_stream(
    model: ServedModel, job: Job, request: GenerateRequest, metrics: RequestMetrics | None
) -> tuple[AsyncGenerator[list[Event]], DirectRun | None]:
    """The batches of one prompt, and the run to which a receiver may be attached."""
    if isinstance(job, EventJob) and job.request.choices > 1 and model.capabilities.has_one_choice:
        one = msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, choices=1))
        batches = merge_choices([EventRun(one, model.progress).stream_batches() for _ in range(job.request.choices)])
        return batches if metrics is None else measure(batches, metrics), None
    direct: DirectRun
    if isinstance(job, TokenJob):
        direct = TokenRun(job, model.progress, model.delivery_rounds)
    else:
        direct = EventRun(job, model.progress)
    batches = direct.stream_batches()
    if metrics is not None:
        batches = measure(batches, metrics)
        direct.add_observer(metrics.observe_batch)
    if (request.best_of or 0) > request.choices:
        return select_best(batches, request.choices), None
    return batches, direct
