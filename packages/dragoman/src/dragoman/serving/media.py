"""Resolution of the media that a request refers to: uploaded files, URLs.

Media is resolved before the engine is called and before headers are sent. Media that
the engine does not support is left unchanged and rejected at admission, except that
text files become text. The content is not interpreted, except the first bytes of an
image.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from ..core.capabilities import Feature
from ..core.errors import RequestError, Unsupported
from ..core.image_header import MAX_BYTES, check_image
from ..core.message import (
    Audio,
    File,
    Image,
    InlineMedia,
    Message,
    Part,
    RemoteMedia,
    Text,
    ToolResult,
    UploadedMedia,
)
from ..core.request import Conversation, GenerateRequest
from ..dialects.field_errors import abbreviate
from ..pipeline.engine_backends import EventBackend
from ..pipeline.served_model import ServedModel
from .file_store import OwnerFiles

if TYPE_CHECKING:
    from .media_fetcher import Fetcher

MAX_IMAGES = 100
"""Maximum number of images in a request; Anthropic's limit."""

MAX_TOTAL = 64 * 1024 * 1024
"""Maximum size of all referenced media of a request, in bytes."""
_MAX_CONCURRENT = 4
"""Media of a request that are loaded concurrently."""
_TEXT_TYPES = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/toml",
)

Medium = Image | Audio | File
_FEATURES: Mapping[type[Medium], Feature] = {
    Image: Feature.IMAGES,
    Audio: Feature.AUDIO,
    File: Feature.FILES,
}


class MediaOptions(Struct, frozen=True):
    """Options for media.

    urls: `refuse` URLs, `fetch` them, or `pass` them to an upstream.
    hosts: patterns of the allowed host names, as in `Fetcher`.
    """

    urls: Literal["refuse", "fetch", "pass"] = "refuse"
    hosts: tuple[str, ...] = ()


class MediaResolver:
    """Resolves media in requests.

    fetcher: downloads URLs; None creates one on first use.
    """

    def __init__(self, options: MediaOptions, fetcher: Fetcher | None = None) -> None:
        self._options = options
        self._fetcher = fetcher

    async def resolve_request(
        self, owner_files: OwnerFiles, model: ServedModel, request: GenerateRequest
    ) -> GenerateRequest:
        """Return the request with its media inline. The model is not unloaded while
        the media is fetched.

        owner_files: the files that the request can refer to.

        Raises:
            RequestError: a medium is missing, too large or not allowed.
        """
        if not isinstance(request.prompt, Conversation):
            return request
        with model.keep_loaded():
            prompt = await self.resolve_conversation(owner_files, model, request.prompt)
        return (
            request if prompt is request.prompt else msgspec.structs.replace(request, prompt=prompt)
        )

    async def resolve_conversation(
        self, owner_files: OwnerFiles, model: ServedModel, conversation: Conversation
    ) -> Conversation:
        """Return the conversation with its media inline. Raises as `resolve_request`."""
        media = _list_media(conversation.messages)
        if not media:
            return conversation
        features = model.capabilities.features
        pending = dict[Medium, str]()
        unreadable_files = list[File]()
        images = 0
        for index, medium in media:
            images += isinstance(medium, Image)
            is_readable = _FEATURES[type(medium)] in features
            if not is_readable and isinstance(medium, File):
                unreadable_files.append(medium)
                # An uploaded text file becomes text, see below.
                is_readable = isinstance(medium.source, UploadedMedia)
            if is_readable and not isinstance(medium.source, InlineMedia):
                pending[medium] = f"messages[{index}].content"
        if images > MAX_IMAGES:
            raise RequestError(
                f"A request can have at most {MAX_IMAGES} images; this has {images}.",
                param="messages",
            )
        if not pending and not unreadable_files:
            return conversation
        # Only an event engine, such as an upstream, accepts URLs; a token engine needs
        # the pixels.
        passes_urls = self._options.urls == "pass" and isinstance(model.backend, EventBackend)
        resolved = await self._resolve_all(
            owner_files,
            {
                item: param
                for item, param in pending.items()
                if not (passes_urls and isinstance(item.source, RemoteMedia))
            },
        )
        replacements: dict[Medium, Medium | Text] = {**resolved}
        for file in unreadable_files:
            replacements[file] = _decode_text(resolved.get(file, file)) or file
        if not replacements:
            return conversation
        messages = tuple(
            msgspec.structs.replace(
                message, parts=tuple(_replace_in_part(part, replacements) for part in message.parts)
            )
            for message in conversation.messages
        )
        return msgspec.structs.replace(conversation, messages=messages)

    async def _resolve_all(
        self, owner_files: OwnerFiles, pending: Mapping[Medium, str]
    ) -> dict[Medium, Medium]:
        """Resolve each medium once, several concurrently."""
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT)
        total = 0

        async def resolve(medium: Medium, param: str) -> Medium:
            nonlocal total
            async with semaphore:
                resolved = await self._resolve_one(owner_files, medium, param)
            total += len(resolved.source.data) if isinstance(resolved.source, InlineMedia) else 0
            # Checked after each file, so that a request holds at most the limit plus
            # the files in flight.
            if total > MAX_TOTAL:
                message = (
                    f"The files and images of this request have more than {MAX_TOTAL} bytes "
                    f"together."
                )
                raise RequestError(message, param=param, code="image_too_large")
            return resolved

        # Keyed by the medium, so that an image in several messages is fetched once.
        tasks = {
            medium: asyncio.ensure_future(resolve(medium, param))
            for medium, param in pending.items()
        }
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        return {medium: task.result() for medium, task in tasks.items()}

    async def _resolve_one(self, owner_files: OwnerFiles, medium: Medium, param: str) -> Medium:
        name = None
        match medium.source:
            case UploadedMedia(id):
                file = await owner_files.find(id)
                if file is None:
                    raise RequestError(
                        f"No such File object: {abbreviate(id)}",
                        param=param,
                        code="image_file_not_found",
                    )
                if file.bytes > MAX_BYTES:
                    raise RequestError(
                        f"The file {abbreviate(id)} has {file.bytes} bytes; the maximum is "
                        f"{MAX_BYTES}.",
                        param=param,
                        code="image_too_large",
                    )
                media_type = file.mime_type or guess_media_type(file.filename)
                inline = InlineMedia(await owner_files.content(id), media_type)
                name = file.filename
            case RemoteMedia(url):
                if self._options.urls != "fetch":
                    raise Unsupported(
                        "This server does not fetch URLs (--media-urls): send a data URL, or "
                        "upload the file first.",
                        param=param,
                        code="invalid_image_url",
                    )
                if self._fetcher is None:
                    from .media_fetcher import Fetcher  # noqa: PLC0415 - its HTTP client takes long to import

                    self._fetcher = Fetcher(self._options.hosts)
                # Without the query, which may end in what looks like a file extension.
                media_type = guess_media_type(url.partition("?")[0])
                inline = InlineMedia(await self._fetcher.fetch(url, param), media_type)
            case InlineMedia():
                return medium
        match medium:
            case Image():
                # Media types from web servers and file names are often wrong, so the
                # type is read from the bytes.
                return msgspec.structs.replace(
                    medium, source=check_image(InlineMedia(inline.data), param)
                )
            case File():
                return msgspec.structs.replace(
                    medium, source=inline, filename=medium.filename or name
                )
            case Audio():
                return msgspec.structs.replace(medium, source=inline)


def guess_media_type(path: str) -> str | None:
    """Return the media type that belongs to the extension of a file's name, path or
    URL.
    """
    # Without the directories: Python 3.13 parses the path as a URL and raises
    # ValueError for one like `http://[x`.
    return mimetypes.guess_type(path.rpartition("/")[2])[0]


def _decode_text(file: Medium) -> Text | None:
    """Decode a text file for an engine without file support; None if it is not text."""
    if not isinstance(file, File) or not isinstance(file.source, InlineMedia):
        return None
    media_type = file.source.media_type or guess_media_type(file.filename or "")
    if media_type is None or not media_type.startswith(_TEXT_TYPES):
        return None
    try:
        return Text(file.source.data.decode())
    except UnicodeDecodeError:
        return None


def has_media(request: GenerateRequest) -> bool:
    """Whether a request has media, wherever it is."""
    prompt = request.prompt
    if not isinstance(prompt, Conversation):
        return False
    for message in prompt.messages:
        for part in message.parts:
            if type(part) is not Text:  # Nearly every part is.
                return bool(_list_media(prompt.messages))
    return False


def _list_media(messages: tuple[Message, ...]) -> list[tuple[int, Medium]]:
    """Return the media with the indices of their messages."""
    media: list[tuple[int, Medium]] = []
    for index, message in enumerate(messages):
        for part in message.parts:
            if type(part) is Text:  # Fast path for most parts.
                continue
            for item in part.content if isinstance(part, ToolResult) else (part,):
                if isinstance(item, Image | Audio | File):
                    media.append((index, item))
    return media


def _replace_in_part(part: Part, replacements: Mapping[Medium, Medium | Text]) -> Part:
    match part:
        case ToolResult(content=content):
            # Tool results can contain media too.
            new_content = tuple(
                replacements.get(item, item) if isinstance(item, Medium) else item
                for item in content
            )
            return msgspec.structs.replace(part, content=new_content)
        case Image() | Audio() | File():
            return replacements.get(part, part)
        case _:
            return part
