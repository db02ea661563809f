"""The worker process that compiles and renders the chat templates that requests bring."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..core.errors import RequestError
from ..isolation.worker_loop import serve
from .template import TemplateFeatures

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

_CACHE_SIZE = 32


class TemplateSource(Struct, frozen=True):
    """A template to compile.

    source: Jinja text.
    special_tokens: names and values.
    """

    source: str
    special_tokens: tuple[tuple[str, str], ...]


class TemplateCall(Struct, frozen=True):
    """A call of the worker.

    template: the template to compile.
    variables: as in `ChatTemplate.render`; None asks for the template's `TemplateInfo`
        instead of a rendering.
    now, characters: as in `ChatTemplate.render`.
    """

    template: TemplateSource
    variables: dict[str, Any] | None = None
    now: datetime | None = None
    characters: int = 0


class TemplateInfo(Struct, frozen=True):
    """The properties of a template that `Renderer` needs."""

    features: TemplateFeatures
    reserved_names: frozenset[str]


class TemplateReply(Struct, frozen=True):
    """The reply to a call: one of the fields is set.

    text: the rendered prompt.
    info: the properties of the template.
    error: message and param of a RequestError.
    """

    text: str = ""
    info: TemplateInfo | None = None
    error: tuple[str, str | None] | None = None


def start(_: bytes) -> Callable[[bytes], bytes]:
    return work


def work(data: bytes) -> bytes:
    call = msgspec.msgpack.decode(data, type=TemplateCall)
    try:
        template = _compile(call.template)
        if call.variables is None or call.now is None:
            reply = TemplateReply(info=TemplateInfo(template.features, template.reserved_names))
        else:
            reply = TemplateReply(
                text=template.render(call.variables, now=call.now, characters=call.characters)
            )
        return msgspec.msgpack.encode(reply)
    except UnicodeEncodeError:
        reply = TemplateReply(
            error=("The chat template writes half of a surrogate pair.", "chat_template")
        )
    except RequestError as error:
        reply = TemplateReply(error=(error.message[:2000], error.param))
    return msgspec.msgpack.encode(reply)


@lru_cache(maxsize=_CACHE_SIZE)
def _compile(template: TemplateSource) -> ChatTemplate:
    # The server imports this module too, for the messages.
    from .chat_template import ChatTemplate  # noqa: PLC0415 - jinja2 takes long to import

    return ChatTemplate(template.source, dict(template.special_tokens))


if __name__ == "__main__":
    serve(start)
