"""Anthropic's Files API: the files of `files`, with Anthropic's rendering and paging. `files` declares the routes."""

from __future__ import annotations

import mimetypes

import msgspec
from starlette.datastructures import FormData

from ...dialects.anthropic.batches import (
    FileMetadata,
    format_timestamp,
    read_expiry_seconds,
    read_file_page_query,
    render_deleted_file,
    render_file_list,
    select_ids,
)
from ...dialects.batches import FileObject
from ...store import Record
from ..endpoint import HttpRequest, JsonResponse
from ..file_store import FILE_KIND, find_file, is_complete
from ..store_access import list_newest_first, require_store
from ..streaming import Responder
from ..uploads import UploadDescription, delete_file, find_file_part, load_file_record, read_fields, store_upload

_OCTET_STREAM = "application/octet-stream"


async def upload(http: HttpRequest) -> JsonResponse | Responder:
    return _render_file(await store_upload(http, _describe_for_anthropic))


def _describe_for_anthropic(form: FormData) -> UploadDescription:
    part = find_file_part(form)
    seconds = read_expiry_seconds(read_fields(form).get("expires_in_seconds"))
    # Browsers on Windows used to send whole paths.
    name = (part.filename or "").replace("\\", "/").rpartition("/")[2]
    mime_type = part.content_type or mimetypes.guess_type(name)[0] or _OCTET_STREAM
    name = name or f"unnamed{mimetypes.guess_extension(mime_type) or ''}"
    # OpenAI's purpose for files that models read: the file has one record for both vendors.
    return UploadDescription("file_", name[:512], "user_data", seconds, mime_type)


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return _render_file(_decode_file(await load_file_record(http)))


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_deleted_file(await delete_file(http)))


async def list_files(http: HttpRequest) -> JsonResponse | Responder:
    store, owner = require_store(http), http.caller.owner
    if ids := select_ids([*http.query.getlist("ids[]"), *http.query.getlist("ids")], http.query):
        chosen_files = [file for id in ids if (file := await find_file(store, owner, id)) is not None]
        return JsonResponse(render_file_list([_build_metadata(file) for file in chosen_files], has_more=False))
    listing = read_file_page_query(http.query)
    rows, has_more = await list_newest_first(store, owner, FILE_KIND, listing, is_complete)
    return JsonResponse(render_file_list([_build_metadata(_decode_file(row)) for row in rows], has_more=has_more))


def _decode_file(record: Record) -> FileObject:
    return msgspec.json.decode(record.body, type=FileObject)


def _render_file(file: FileObject) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(_build_metadata(file)))


def _build_metadata(file: FileObject) -> FileMetadata:
    return FileMetadata(
        id=file.id,
        filename=file.filename,
        mime_type=file.mime_type or mimetypes.guess_type(file.filename)[0] or _OCTET_STREAM,
        size_bytes=file.bytes,
        created_at=format_timestamp(file.created_at),
        expires_at=None if file.expires_at is None else format_timestamp(file.expires_at),
    )
