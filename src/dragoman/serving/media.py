"""Brings here the media that a request only names: files that were uploaded, and what lies behind URLs.

All of it is done before an engine is asked, and before the headers go out. What the model's engine cannot read is left
as it is, and admission refuses it; but a file that is text becomes text. Knows nothing of what is in the media but what
an image's first bytes say.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from ..core.engine import Feature
from ..core.errors import RequestError, Unsupported
from ..core.message import Audio, File, Image, Inline, Message, Part, Remote, Stored, Text, ToolResult
from ..core.picture import MAX_BYTES, checked_image
from ..core.request import Conversation, GenerateRequest
from ..dialects.body import echo
from ..pipeline.models import EventBackend, ServedModel
from .file_store import Owned

if TYPE_CHECKING:
    from .fetch import Fetcher

MAX_IMAGES = 100
"""In one request: Anthropic's bound."""

MAX_TOTAL = 64 * 1024 * 1024
"""Bytes of all that one request only names."""
_AT_ONCE = 4
_TEXTS = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")

Medium = Image | Audio | File
_FEATURES: Mapping[type[Medium], Feature] = {Image: Feature.IMAGES, Audio: Feature.AUDIO, File: Feature.FILES}


class MediaOptions(Struct, frozen=True):
    """urls: what becomes of media behind URLs. They are refused, or fetched by this server, or passed on to an
    upstream, which then decides. hosts: see `Fetcher`.
    """

    urls: Literal["refuse", "fetch", "pass"] = "refuse"
    hosts: tuple[str, ...] = ()


class Media:
    """What this server does about media. fetcher: how it reaches them."""

    def __init__(self, options: MediaOptions, fetcher: Fetcher | None = None) -> None:
        self._options, self._fetcher = options, fetcher

    async def gathered(self, owned: Owned, model: ServedModel, request: GenerateRequest) -> GenerateRequest:
        """The request with its media in it. owned: what it may name. Raises RequestError."""
        if not isinstance(request.prompt, Conversation):
            return request
        prompt = await self.in_conversation(owned, model, request.prompt)
        return request if prompt is request.prompt else msgspec.structs.replace(request, prompt=prompt)

    async def in_conversation(self, owned: Owned, model: ServedModel, conversation: Conversation) -> Conversation:
        """As `gathered`."""
        features, named, unread = model.capabilities.features, dict[Medium, str](), list[File]()
        images = 0
        for index, medium in _media(conversation.messages):
            images += isinstance(medium, Image)
            readable = _FEATURES[type(medium)] in features
            if not readable and isinstance(medium, File):
                unread.append(medium)
                readable = isinstance(medium.source, Stored)
            if readable and not isinstance(medium.source, Inline):
                named[medium] = f"messages[{index}].content"
        if images > MAX_IMAGES:
            raise RequestError(f"A request can have at most {MAX_IMAGES} images; this has {images}.", param="messages")
        passes = self._options.urls == "pass" and isinstance(model.backend, EventBackend)
        brought: dict[Medium, Medium | Text] = {}
        found = await self._brought(
            owned, {one: at for one, at in named.items() if not (passes and isinstance(one.source, Remote))}
        )
        brought |= found
        for file in unread:
            brought[file] = _text_of(found.get(file, file)) or file
        if not brought:
            return conversation
        messages = tuple(_with(message, brought) for message in conversation.messages)
        return msgspec.structs.replace(conversation, messages=messages)

    async def _brought(self, owned: Owned, named: Mapping[Medium, str]) -> dict[Medium, Medium]:
        """Each once, some of them at the same time."""
        room, total = asyncio.Semaphore(_AT_ONCE), 0

        async def bring(medium: Medium, at: str) -> Medium:
            nonlocal total
            async with room:
                brought = await self._bring(owned, medium, at)
            total += len(brought.source.data) if isinstance(brought.source, Inline) else 0
            if total > MAX_TOTAL:
                message = f"The files and images of this request have more than {MAX_TOTAL} bytes together."
                raise RequestError(message, param=at, code="image_too_large")
            return brought

        tasks = {medium: asyncio.ensure_future(bring(medium, at)) for medium, at in named.items()}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        return {medium: task.result() for medium, task in tasks.items()}

    async def _bring(self, owned: Owned, medium: Medium, at: str) -> Medium:
        match medium.source:
            case Stored(id):
                inline, name = await _uploaded(owned, id, at)
            case Remote(url):
                inline, name = await self._fetched(url, at), None
            case Inline():
                return medium
        match medium:
            case Image():
                # What a web server or a file's name says of it is often wrong, and no word of the client's.
                return msgspec.structs.replace(medium, source=checked_image(Inline(inline.data), at))
            case File():
                return msgspec.structs.replace(medium, source=inline, filename=medium.filename or name)
            case Audio():
                return msgspec.structs.replace(medium, source=inline)

    async def _fetched(self, url: str, at: str) -> Inline:
        if self._options.urls != "fetch":
            raise Unsupported(
                "This server does not fetch URLs (--media-urls): send a data URL, or upload the file first.",
                param=at,
                code="invalid_image_url",
            )
        if self._fetcher is None:
            # It brings a whole HTTP client, which a server that fetches nothing does not need.
            from .fetch import Fetcher  # noqa: PLC0415

            self._fetcher = Fetcher(self._options.hosts)
        return Inline(await self._fetcher.get(url, at), mimetypes.guess_type(url.partition("?")[0])[0])


def _text_of(file: Medium) -> Text | None:
    """For an engine that reads no files; None for one that is not text."""
    if not isinstance(file, File) or not isinstance(file.source, Inline):
        return None
    kind = file.source.media_type or mimetypes.guess_type(file.filename or "")[0]
    if kind is None or not kind.startswith(_TEXTS):
        return None
    try:
        return Text(file.source.data.decode())
    except UnicodeDecodeError:
        return None


async def _uploaded(owned: Owned, id: str, at: str) -> tuple[Inline, str]:
    """An uploaded file and its name. Raises RequestError."""
    found = await owned.find(id)
    if found is None:
        raise RequestError(f"No such File object: {echo(id)}", param=at, code="image_file_not_found")
    if found.bytes > MAX_BYTES:
        raise RequestError(
            f"The file {echo(id)} has {found.bytes} bytes; the maximum is {MAX_BYTES}.",
            param=at,
            code="image_too_large",
        )
    return Inline(await owned.content(id), found.mime_type or mimetypes.guess_type(found.filename)[0]), found.filename


def _media(messages: tuple[Message, ...]) -> Iterator[tuple[int, Medium]]:
    """Each with its message's place."""
    for index, message in enumerate(messages):
        for part in message.parts:
            for one in part.content if isinstance(part, ToolResult) else (part,):
                if isinstance(one, Image | Audio | File):
                    yield index, one


def _with(message: Message, brought: Mapping[Medium, Medium | Text]) -> Message:
    return msgspec.structs.replace(message, parts=tuple(_replaced(part, brought) for part in message.parts))


def _replaced(part: Part, brought: Mapping[Medium, Medium | Text]) -> Part:
    match part:
        case ToolResult(content=content):
            shown = tuple(brought.get(one, one) if isinstance(one, Medium) else one for one in content)
            return msgspec.structs.replace(part, content=shown)
        case Image() | Audio() | File():
            return brought.get(part, part)
        case _:
            return part
