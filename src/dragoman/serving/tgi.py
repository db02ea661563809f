"""TGI's and LightLLM's routes. /generate is SGLang's too: `sglang.generate` looks whose body it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from .. import __version__
from ..core.errors import DragomanError
from ..dialects.tgi import read_tgi, tgi_error, tgi_info, tgi_status
from .answer import Answer
from .auth import Access
from .endpoint import Envelope, Handler, Http, Made, Refusal, Whole, make
from .generate import generated, generation, read_body

ENVELOPE = Envelope(lambda error, _: tgi_error(error), tgi_status)
ROUTES = frozenset({"/", "/generate_stream", "/info"})
"""Those that are nobody else's, so that all of their errors are TGI's."""


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    user = Access.USER
    return {
        "/": (user, {"POST": generation(partial(read_tgi, listed=True))}),
        "/generate_stream": (user, {"POST": generation(partial(read_tgi, streamed=True))}),
        "/info": (user, {"GET": info}),
    }


async def generate(http: Http, body: bytes) -> Made:
    """An answer on a path that others have too, whose errors are TGI's as well."""
    own = replace(http, envelope=ENVELOPE)

    async def handle() -> Answer:
        return await generated(own, await read_body(own, body, read_tgi))

    made = await make(handle())
    return Refusal(made, ENVELOPE) if isinstance(made, DragomanError) else made


async def info(http: Http) -> Whole | Answer:
    models = http.service.models
    model = await models.ready(http.query.get("model") or models.places[0].name)
    return Whole(tgi_info(model.name, model.max_model_len, http.service.reading.max_stop, __version__))
