"""Resolves media that a request refers to: uploaded files and URLs.

Media are resolved before the engine is called and before headers are sent. Media that the engine does not support are
left unchanged and rejected at admission, except that text files become text. Content is not interpreted beyond an
image's first bytes.
"""

from __future__ import annotations

import asyncio
import mimetypes
import socket
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

import httpx2
import msgspec
from msgspec import Struct

from ..core.engine import Feature
from ..core.errors import RequestError, Unsupported
from ..core.images import MAX_BYTES, check_image
from ..core.message import Audio, File, Image, InlineMedia, Message, Part, RemoteMedia, Text, ToolResult, UploadedMedia
from ..core.request import Conversation, GenerateRequest
from ..dialects.body import abbreviate
from ..pipeline.models import EventBackend, ServedModel
from .file_store import OwnerFiles

MAX_IMAGES = 100
"""Per request; Anthropic's limit."""

MAX_TOTAL = 64 * 1024 * 1024
"""Bytes of all referenced media in one request."""
_MAX_CONCURRENT = 4
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")

Medium = Image | Audio | File
_FEATURES: Mapping[type[Medium], Feature] = {Image: Feature.IMAGES, Audio: Feature.AUDIO, File: Feature.FILES}


class MediaOptions(Struct, frozen=True):
    """Options for media.

    urls: `refuse` URLs, `fetch` them, or `pass` them on to an upstream.
    hosts: see `Fetcher`.
    """

    urls: Literal["refuse", "fetch", "pass"] = "refuse"
    hosts: tuple[str, ...] = ()


class MediaResolver:
    """Resolves media in requests. fetcher: downloads URLs; created on first use if None."""

    def __init__(self, options: MediaOptions, fetcher: Fetcher | None = None) -> None:
        self._options, self._fetcher = options, fetcher

    async def resolve_requests(
        self, owner_files: OwnerFiles, model: ServedModel, requests: list[GenerateRequest]
    ) -> list[GenerateRequest]:
        """The requests with their media inline; the model is not unloaded while they are fetched.

        Raises as `resolve_request`.
        """
        # Nearly always: what has no media waits for nothing.
        if not any(isinstance(each.prompt, Conversation) and _list_media(each.prompt.messages) for each in requests):
            return requests
        with model.keep_loaded():
            return [await self.resolve_request(owner_files, model, request) for request in requests]

    async def resolve_request(
        self, owner_files: OwnerFiles, model: ServedModel, request: GenerateRequest
    ) -> GenerateRequest:
        """Return the request with its media inline.

        owner_files: the files that the request can refer to.

        Raises:
            RequestError: a medium is missing, too large or not allowed.
        """
        if not isinstance(request.prompt, Conversation):
            return request
        prompt = await self.resolve_conversation(owner_files, model, request.prompt)
        return request if prompt is request.prompt else msgspec.structs.replace(request, prompt=prompt)

    async def resolve_conversation(
        self, owner_files: OwnerFiles, model: ServedModel, conversation: Conversation
    ) -> Conversation:
        """Return the conversation with its media inline. Raises as `resolve_request`."""
        media = _list_media(conversation.messages)
        if not media:
            return conversation
        features, pending, unreadable_files = model.capabilities.features, dict[Medium, str](), list[File]()
        images = 0
        for index, medium in media:
            images += isinstance(medium, Image)
            is_readable = _FEATURES[type(medium)] in features
            if not is_readable and isinstance(medium, File):
                unreadable_files.append(medium)
                # Its text can still be given to the model, see below.
                is_readable = isinstance(medium.source, UploadedMedia)
            if is_readable and not isinstance(medium.source, InlineMedia):
                pending[medium] = f"messages[{index}].content"
        if images > MAX_IMAGES:
            raise RequestError(f"A request can have at most {MAX_IMAGES} images; this has {images}.", param="messages")
        if not pending and not unreadable_files:
            return conversation
        # Only an engine of events, such as an upstream, can take a URL; a token engine needs the pixels.
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

    async def _resolve_all(self, owner_files: OwnerFiles, pending: Mapping[Medium, str]) -> dict[Medium, Medium]:
        """Resolve each medium once, several concurrently."""
        semaphore, total = asyncio.Semaphore(_MAX_CONCURRENT), 0

        async def resolve(medium: Medium, param: str) -> Medium:
            nonlocal total
            async with semaphore:
                resolved = await self._resolve_one(owner_files, medium, param)
            total += len(resolved.source.data) if isinstance(resolved.source, InlineMedia) else 0
            # After each file, so that a request holds at most the limit and what is in flight.
            if total > MAX_TOTAL:
                message = f"The files and images of this request have more than {MAX_TOTAL} bytes together."
                raise RequestError(message, param=param, code="image_too_large")
            return resolved

        # Keyed by the medium: an image that occurs in several messages is fetched once.
        tasks = {medium: asyncio.ensure_future(resolve(medium, param)) for medium, param in pending.items()}
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
                        f"No such File object: {abbreviate(id)}", param=param, code="image_file_not_found"
                    )
                if file.bytes > MAX_BYTES:
                    raise RequestError(
                        f"The file {abbreviate(id)} has {file.bytes} bytes; the maximum is {MAX_BYTES}.",
                        param=param,
                        code="image_too_large",
                    )
                media_type = file.mime_type or mimetypes.guess_type(file.filename)[0]
                inline, name = InlineMedia(await owner_files.content(id), media_type), file.filename
            case RemoteMedia(url):
                if self._options.urls != "fetch":
                    raise Unsupported(
                        "This server does not fetch URLs (--media-urls): send a data URL, or upload the file first.",
                        param=param,
                        code="invalid_image_url",
                    )
                self._fetcher = self._fetcher or Fetcher(self._options.hosts)
                # The query is left out: it often ends in something like a file name.
                media_type = mimetypes.guess_type(url.partition("?")[0])[0]
                inline = InlineMedia(await self._fetcher.fetch(url, param), media_type)
            case InlineMedia():
                return medium
        match medium:
            case Image():
                # Media types from web servers and file names are often wrong, so the bytes determine an image's type.
                return msgspec.structs.replace(medium, source=check_image(InlineMedia(inline.data), param))
            case File():
                return msgspec.structs.replace(medium, source=inline, filename=medium.filename or name)
            case Audio():
                return msgspec.structs.replace(medium, source=inline)


def _decode_text(file: Medium) -> Text | None:
    """Decode a text file for an engine without file support; None if it is not text."""
    if not isinstance(file, File) or not isinstance(file.source, InlineMedia):
        return None
    media_type = file.source.media_type or mimetypes.guess_type(file.filename or "")[0]
    if media_type is None or not media_type.startswith(_TEXT_TYPES):
        return None
    try:
        return Text(file.source.data.decode())
    except UnicodeDecodeError:
        return None


def _list_media(messages: tuple[Message, ...]) -> list[tuple[int, Medium]]:
    """The media with the indices of their messages."""
    media: list[tuple[int, Medium]] = []
    for index, message in enumerate(messages):
        for part in message.parts:
            if type(part) is Text:  # Nearly every part.
                continue
            for item in part.content if isinstance(part, ToolResult) else (part,):
                if isinstance(item, Image | Audio | File):
                    media.append((index, item))
    return media


def _replace_in_part(part: Part, replacements: Mapping[Medium, Medium | Text]) -> Part:
    match part:
        case ToolResult(content=content):
            # The results of tools can contain images too.
            new_content = tuple(replacements.get(item, item) if isinstance(item, Medium) else item for item in content)
            return msgspec.structs.replace(part, content=new_content)
        case Image() | Audio() | File():
            return replacements.get(part, part)
        case _:
            return part


# Fetches media from URLs in requests, from public internet addresses only.

Address = IPv4Address | IPv6Address
ResolveHost = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host to addresses for connections to a port. Raises OSError if there are none."""

MAX_REDIRECTS = 3
TIMEOUT = 10.0
"""Seconds for a fetch, including redirects."""
_GLOBAL = IPv6Network("2000::/3")
"""Global unicast (RFC 4291); other prefixes can contain mapped IPv4, link-local or site-local addresses."""
_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # IETF protocol assignments (RFC 6890)
        "192.88.99.0/24",  # 6to4 relays, deprecated (RFC 7526)
        "2001::/23",  # IETF protocol assignments, Teredo among them (RFC 2928)
        "2001:db8::/32",  # documentation (RFC 3849)
        "2002::/16",  # 6to4 (RFC 3056)
        "3fff::/20",  # documentation (RFC 9637)
    )
)
"""Networks on which versions of `ipaddress` disagree, or which it counts as global without public hosts.

https://www.iana.org/assignments/iana-ipv6-special-registry/
"""


class Fetcher:
    """Fetches URLs with checks against SSRF.

    hosts: patterns of host names, one of which must match; empty allows any host.
    is_allowed: whether an address may be connected to.
    timeout: seconds for one fetch.
    transport: how addresses are reached; None is the network.
    """

    def __init__(
        self,
        hosts: tuple[str, ...] = (),
        *,
        resolve: ResolveHost | None = None,
        is_allowed: Callable[[Address], bool] | None = None,
        timeout: float = TIMEOUT,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        # Host names are case-insensitive.
        self._hosts = tuple(host.lower() for host in hosts)
        self._resolve, self._is_allowed = resolve or resolve_addresses, is_allowed or is_public
        self._timeout, self._transport = timeout, transport

    async def fetch(self, url: str, param: str) -> bytes:
        """Return the content at `url`.

        param: the request's field, for errors.

        Raises:
            RequestError: the URL is not allowed, or the download failed.
        """
        # A proxy from the environment would connect to an unchecked address.
        client = httpx2.AsyncClient(transport=self._transport, timeout=self._timeout, trust_env=False)
        try:
            async with asyncio.timeout(self._timeout), client:
                return await self._follow_redirects(client, url, param)
        except (TimeoutError, httpx2.HTTPError, OSError, UnicodeError):
            raise _build_download_error(param, f"{abbreviate(url)} could not be fetched") from None

    async def _follow_redirects(self, client: httpx2.AsyncClient, url: str, param: str) -> bytes:
        current_url = url
        # By hand, since the client would follow a redirect without the checks of its address.
        for _ in range(MAX_REDIRECTS + 1):
            request = await self._build_request(client, current_url, param)
            response = await client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    return await _read_content(response, url, param)
                current_url = str(httpx2.URL(current_url).join(response.headers["location"]))
            except httpx2.InvalidURL:
                raise _build_invalid_url_error(param, f"{abbreviate(url)} redirects to an invalid URL") from None
            finally:
                await response.aclose()
        raise _build_download_error(param, f"{abbreviate(url)} redirects too often")

    async def _build_request(self, client: httpx2.AsyncClient, url: str, param: str) -> httpx2.Request:
        """Build a request to the checked address, with the URL's host name in Host and SNI."""
        try:
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise _build_invalid_url_error(param, f"{abbreviate(url)} is not a URL") from None
        # `%` begins a zone id, which names a local interface.
        if parsed.scheme not in ("http", "https") or not parsed.host or "%" in parsed.host:
            raise _build_invalid_url_error(param, "only http and https URLs of named hosts are fetched")
        # https://trusted@evil.example reads like the wrong host, and a password would go to a host of the client's
        # choice.
        if parsed.userinfo:
            raise _build_invalid_url_error(param, "a URL with a user or a password in it is not fetched")
        host, port = parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80)
        if self._hosts and not any(fnmatchcase(host.lower(), pattern) for pattern in self._hosts):
            raise _build_invalid_url_error(param, f"this server does not fetch from {abbreviate(host)}")
        resolved = [ip_address(text) for text in await self._resolve(host, port)]
        # All of them: which address the connection takes must not decide.
        if not resolved or not all(map(self._is_allowed, resolved)):
            raise _build_invalid_url_error(param, f"{abbreviate(host)} is not a public host")
        return client.build_request(
            "GET",
            # The checked address itself, so that no second resolution can differ (DNS rebinding).
            parsed.copy_with(host=str(resolved[0]), fragment=None),
            # Not compressed: a small download could become large.
            headers={"host": parsed.netloc.decode("ascii"), "accept": "*/*", "accept-encoding": "identity"},
            extensions={"sni_hostname": parsed.raw_host.decode("ascii")},
        )


def is_public(address: Address) -> bool:
    """Whether the address is public: not local or private, and not an IPv6 address that embeds an IPv4 one."""
    if any(address in network for network in _NOT_PUBLIC) or (address.version == 6 and address not in _GLOBAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


async def resolve_addresses(host: str, port: int) -> list[str]:
    """Implements `ResolveHost` with the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in infos]


async def _read_content(response: httpx2.Response, url: str, param: str) -> bytes:
    """Read the body as sent; nothing is decompressed."""
    if response.status_code != 200:
        raise _build_download_error(param, f"{abbreviate(url)} returned HTTP {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _build_download_error(param, f"{abbreviate(url)} sent a compressed response, which was not requested")
    chunks: list[bytes] = []
    size = 0
    # Content-Length is what the other side claims, so the bytes are counted.
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BYTES:
            raise RequestError(
                f"The content of {abbreviate(url)} has more than {MAX_BYTES} bytes.",
                param=param,
                code="image_too_large",
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _build_invalid_url_error(param: str, reason: str) -> RequestError:
    return RequestError(f"Invalid value for '{param}': {reason}.", param=param, code="invalid_image_url")


def _build_download_error(param: str, reason: str) -> RequestError:
    return RequestError(f"Invalid value for '{param}': {reason}.", param=param, code="failed_to_download_image")
