"""Chat templates from requests, compiled and rendered in worker processes that can be
killed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import anyio.to_thread
import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..isolation.worker_pool import LimitExceeded, WorkerLimits, WorkerPool
from .render import Renderer, Rendering, Steps
from .rendered import Rendered
from .template import TemplateFeatures
from .template_worker import TemplateCall, TemplateReply, TemplateSource

_CACHE_SIZE = 32
"""Maximum number of cached renderers."""


class RequestTemplate(Struct, frozen=True):
    """A template that is rendered in another process, see `Template`."""

    source: str
    special_tokens: Mapping[str, str]
    features: TemplateFeatures
    reserved_names: frozenset[str]


class RequestTemplates:
    """Compiles and renders chat templates from requests. Used on one event loop."""

    def __init__(self, limits: WorkerLimits | None = None) -> None:
        self.pool = WorkerPool("dragoman.prompts.template_worker", limits)
        self._renderers: OrderedDict[tuple[int, str], Renderer] = OrderedDict()

    async def renderer(self, base: Renderer, source: str, owner: str = "") -> Renderer:
        """Return the model's renderer with another template; pass its `steps` to
        `render`.

        owner: whose turn the template waits for.

        Raises:
            RequestError: the template does not compile, or exceeds its time or memory
                (param "chat_template").
            Overloaded: too many calls wait.
        """
        # A model's renderer lives as long as the model, so its id is not reused while
        # the model is served.
        key = id(base), source
        renderer = self._renderers.get(key)
        if renderer is None:
            special_tokens = base.template.special_tokens
            reply = await self._ask(TemplateCall(_source(source, special_tokens)), owner)
            assert reply.info is not None
            template = RequestTemplate(
                source, special_tokens, reply.info.features, reply.info.reserved_names
            )
            renderer = await anyio.to_thread.run_sync(Renderer, template, base.tokenizer)
            self._renderers[key] = renderer
            if len(self._renderers) > _CACHE_SIZE:
                self._renderers.popitem(last=False)
        self._renderers.move_to_end(key)
        return renderer

    async def render(self, renderer: Renderer, steps: Steps[Rendered], owner: str = "") -> Rendered:
        """Run the steps. Raises the errors of `renderer`, and RequestError if the
        template rejects the messages.
        """
        template = _source(renderer.template.source, renderer.template.special_tokens)
        step = await anyio.to_thread.run_sync(_advance, steps, None)
        while not isinstance(step, Rendered):
            call = TemplateCall(template, dict(step.variables), step.now, step.characters)
            try:
                outcome: str | RequestError = (await self._ask(call, owner)).text
            except RequestError as error:
                outcome = error
            step = await anyio.to_thread.run_sync(_advance, steps, outcome)
        return step

    def close(self) -> None:
        self.pool.close()

    async def _ask(self, call: TemplateCall, owner: str) -> TemplateReply:
        try:
            data = await anyio.to_thread.run_sync(msgspec.msgpack.encode, call)
            reply = msgspec.msgpack.decode(await self.pool.run(data, owner), type=TemplateReply)
        except UnicodeEncodeError as error:
            raise RequestError(
                "The chat template is not valid Unicode.", param="chat_template"
            ) from error
        except LimitExceeded as exceeded:
            message = f"The chat template takes too much {exceeded.resource}."
            raise RequestError(message, param="chat_template") from exceeded
        if reply.error is not None:
            message, param = reply.error
            raise RequestError(message, param=param)
        return reply


def _source(source: str, special_tokens: Mapping[str, str]) -> TemplateSource:
    return TemplateSource(source, tuple(special_tokens.items()))


def _advance(steps: Steps[Rendered], outcome: str | RequestError | None) -> Rendering | Rendered:
    """Return the next rendering, or the result after the last one.

    outcome: text or error of the previous rendering; None for the first.
    """
    try:
        if isinstance(outcome, RequestError):
            return steps.throw(outcome)
        return next(steps) if outcome is None else steps.send(outcome)
    except StopIteration as done:
        return done.value
