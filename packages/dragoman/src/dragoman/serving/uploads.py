"""Uploads of files from multipart forms, for any vendor's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import NamedTuple

import anyio.to_thread
import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import FormData, UploadFile

from ..core.errors import BodyTooLarge, DragomanError, UnsupportedMediaType
from ..dialects.field_errors import missing_parameter
from ..dialects.openai_files import FileObject
from ..store import Append, Delete, Item, Replace
from .disconnect import ClientGone
from .file_store import (
    CONTENT_SERIES,
    PROCESSED,
    UPLOADING,
    build_put,
)
from .http_request import HttpRequest
from .record_pages import require_store

CHUNK_BYTES = 512 * 1024
"""Bytes per stored chunk."""


class UploadDescription(NamedTuple):
    """The properties of an upload.

    prefix: prefix of the file's id.
    name: file name.
    purpose: as in OpenAI's API.
    ttl_seconds: lifetime of the file; None is unlimited.
    mime_type: media type, if the vendor's API reports it.
    """

    prefix: str
    name: str
    purpose: str
    ttl_seconds: int | None
    mime_type: str | UnsetType = UNSET


async def store_upload(
    http: HttpRequest, describe: Callable[[FormData], UploadDescription]
) -> FileObject:
    """Store an upload in chunks. The file becomes visible when it is complete."""
    store = require_store(http)
    # A few small fields besides one file: more parts would only cost memory.
    form = await read_form(http, http.service.options.max_file_bytes, max_fields=8)
    try:
        description = describe(form)
        created = int(http.service.clock.now())
        file = FileObject(
            id=http.service.ids.new(description.prefix),
            bytes=0,
            created_at=created,
            filename=description.name,
            purpose=description.purpose,
            expires_at=None
            if description.ttl_seconds is None
            else created + description.ttl_seconds,
            mime_type=description.mime_type,
        )
        # The run id names the uploading process: after its crash
        # `delete_abandoned_uploads` finds and deletes the file.
        put = build_put(http.caller.owner, file, UPLOADING, store.run)
        await store.commit(put)
        content = find_file_part(form).file
        size = 0
        try:
            while chunk := await anyio.to_thread.run_sync(content.read, CHUNK_BYTES):
                await store.commit(Append(put.key, CONTENT_SERIES, (Item(chunk),)))
                size += len(chunk)
        except DragomanError:
            # Do not leave the chunks of an incomplete file in the store.
            await store.commit(Delete(put.key))
            raise
    finally:
        # Large parts of a form are temporary files.
        await form.close()
    complete_file = msgspec.structs.replace(file, bytes=size)
    await store.commit(Replace(put.key, PROCESSED, msgspec.json.encode(complete_file)))
    return complete_file


async def read_form(http: HttpRequest, max_bytes: int, *, max_fields: int) -> FormData:
    """Read a multipart form of one file and its fields, which must be closed.

    Raises:
        UnsupportedMediaType: the body is no form, or compressed.
        BodyTooLarge: the body exceeds `max_bytes`.
        RequestError: the form is malformed or truncated, or has more parts.
        ClientGone: the client disconnected.
    """
    media_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise UnsupportedMediaType("Send the file as `Content-Type: multipart/form-data`.")
    # Decompression would need a limit of its own, and SDKs send files as they are.
    if http.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType("File uploads cannot have a Content-Encoding.")
    chunks = _receive_chunks(http, max_bytes)
    # Its parser takes long to import, and few servers get forms.
    from .form_parser import parse_form  # noqa: PLC0415

    return await parse_form(http.headers, chunks, max_fields=max_fields)


async def _receive_chunks(http: HttpRequest, limit: int) -> AsyncGenerator[bytes]:
    """Yield the body as it arrives.

    Raises:
        BodyTooLarge: the body has more than `limit` bytes.
        ClientGone: the client disconnected.
    """
    size = 0
    while True:
        message = await http.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        size += len(message.get("body", b""))
        # Counted on arrival: Content-Length may be missing.
        if size > limit:
            raise BodyTooLarge(f"The file is larger than the limit of {limit} bytes.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def find_file_part(form: FormData) -> UploadFile:
    """Return the form's part named `file`.

    Raises:
        RequestError: the form has no file.
    """
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise missing_parameter("file")
    return file


def read_fields(form: FormData) -> Mapping[str, str]:
    """Return the form's text fields by name."""
    return {name: text for name, text in form.multi_items() if isinstance(text, str)}


OCTET_STREAM = "application/octet-stream"
