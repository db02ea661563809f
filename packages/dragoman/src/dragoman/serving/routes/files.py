"""The Files API: upload, list, read, delete."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import FormData

from ...dialects.anthropic.errors import ANTHROPIC_ERRORS
from ...dialects.anthropic.files import (
    FileMetadata,
    FilePage,
    read_file_page_query,
    render_deleted_file,
    render_file_list,
    select_ids,
)
from ...dialects.anthropic.files import read_expiry_seconds as read_anthropic_expiry
from ...dialects.anthropic.message_batches import format_timestamp
from ...dialects.anthropic.response_schemas import DeletedAnthropicFile
from ...dialects.field_errors import invalid_value
from ...dialects.openai_files import FileObject, read_expiry_seconds, read_purpose, render_deleted
from ...dialects.pagination import read_page_query
from ...dialects.registry import BY_CLIENT
from ...store import Record
from ..api_description import (
    BINARY,
    PAGE,
    ApiResponse,
    DeletedObjectResponse,
    Form,
    ObjectPage,
    Query,
    response,
)
from ..file_store import FILE_KIND, find_file, is_complete, read_chunks
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..media import guess_media_type
from ..record_pages import list_newest_first, list_records, require_store
from ..replay_responder import ReplayResponder
from ..requested_file import delete_file, load_file_record
from ..responder import RawFraming, Responder
from ..route import Route, RouteGroup, choose_by_client
from ..uploads import OCTET_STREAM, UploadDescription, find_file_part, read_fields, store_upload

_BATCH_TTL = 30 * 86400
"""Seconds for which OpenAI keeps the input files of batches by default."""
_MAX_LISTED = 10_000

_UPLOAD = Form(
    {
        "file": (bytes, "The content."),
        "purpose": (
            str,
            "`batch` or another of OpenAI's purposes; not in Anthropic's API.",
        ),
        "expires_after[anchor]": (
            Literal["created_at"],
            "The start of the file's lifetime.",
        ),
        "expires_after[seconds]": (
            int,
            "Lifetime of the file, in seconds.",
        ),
        "expires_in_seconds": (
            int,
            "Lifetime of the file, in seconds, in Anthropic's API.",
        ),
    }
)


def build_routes() -> Sequence[Route]:
    """Build the routes that both vendors have; a request's headers choose the vendor's
    format.
    """
    routes = RouteGroup("Files", BY_CLIENT)
    routes.add(
        "GET",
        "/v1/files",
        choose_by_client(ANTHROPIC_ERRORS, list_anthropic_files, list_files),
        "List files",
        response(ObjectPage, FilePage),
        query=(
            Query(
                "limit",
                Annotated[int, Meta(ge=1)],
                "Maximum number of objects per page.",
            ),
            *PAGE[1:],
            Query("purpose", str, "Only files of this purpose."),
            Query("page", str, "Anthropic's cursor: `next_page` of the previous page."),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    )
    routes.add(
        "POST",
        "/v1/files",
        choose_by_client(ANTHROPIC_ERRORS, upload_anthropic, upload),
        "Upload a file",
        response(FileObject, FileMetadata),
        bodies=(_UPLOAD,),
        description="With the header `anthropic-version`, in Anthropic's format.",
    )
    routes.add(
        "GET",
        "/v1/files/{file}",
        choose_by_client(ANTHROPIC_ERRORS, show_anthropic, show),
        "Retrieve a file's metadata",
        response(FileObject, FileMetadata),
    )
    routes.add(
        "DELETE",
        "/v1/files/{file}",
        choose_by_client(ANTHROPIC_ERRORS, delete_anthropic, delete),
        "Delete a file",
        response(DeletedObjectResponse, DeletedAnthropicFile),
    )
    routes.add(
        "GET",
        "/v1/files/{file}/content",
        show_content,
        "Download a file",
        ApiResponse(media=BINARY),
    )
    return routes.build()


async def upload(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(await store_upload(http, _read_upload)))


def _read_upload(form: FormData) -> UploadDescription:
    file = find_file_part(form)
    fields = read_fields(form)
    purpose = read_purpose(fields.get("purpose"))
    anchor = fields.get("expires_after[anchor]")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        # OpenAI's defaults: 30 days for the input files of batches, no expiry for
        # others.
        ttl_seconds = _BATCH_TTL if purpose == "batch" else None
    elif anchor != "created_at":
        raise invalid_value("expires_after.anchor", "expected 'created_at'")
    else:
        ttl_seconds = read_expiry_seconds(seconds)
    return UploadDescription("file-", (file.filename or "upload")[:512], purpose, ttl_seconds)


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse((await load_file_record(http)).body)


async def list_files(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(
        http.query, descending=True, default=_MAX_LISTED, max_limit=_MAX_LISTED
    )
    purpose = http.query.get("purpose")

    def matches(record: Record) -> bool:
        return is_complete(record) and (
            purpose is None or msgspec.json.decode(record.body, type=FileObject).purpose == purpose
        )

    return JsonResponse(
        await list_records(require_store(http), http.caller.owner, FILE_KIND, paging, matches)
    )


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_deleted(await delete_file(http), FILE_KIND))


async def show_content(http: HttpRequest) -> JsonResponse | Responder:
    record = await load_file_record(http)
    file = msgspec.json.decode(record.body, type=FileObject)
    # Clients choose the content, so `nosniff` prevents browsers from rendering it as a
    # page of this server.
    length = (b"content-length", str(file.bytes).encode())
    content_type = (b"content-type", OCTET_STREAM.encode())
    headers = [*http.build_headers(content_type), length, (b"x-content-type-options", b"nosniff")]
    # Streamed from the store a few chunks at a time, because files can be large.
    return ReplayResponder(
        read_chunks(require_store(http), record.key),
        RawFraming(),
        http.build_response_start(headers),
        http.service.stream_monitor,
    )


async def upload_anthropic(http: HttpRequest) -> JsonResponse | Responder:
    return _render_file(await store_upload(http, _read_anthropic_upload))


def _read_anthropic_upload(form: FormData) -> UploadDescription:
    part = find_file_part(form)
    seconds = read_anthropic_expiry(read_fields(form).get("expires_in_seconds"))
    # Some old browsers on Windows send whole paths.
    name = (part.filename or "").replace("\\", "/").rpartition("/")[2]
    mime_type = part.content_type or guess_media_type(name) or OCTET_STREAM
    name = name or f"unnamed{mimetypes.guess_extension(mime_type) or ''}"
    # Both vendors share the records; OpenAI's purpose for files that models read is
    # `user_data`.
    return UploadDescription("file_", name[:512], "user_data", seconds, mime_type)


async def show_anthropic(http: HttpRequest) -> JsonResponse | Responder:
    return _render_file(_decode_file(await load_file_record(http)))


async def delete_anthropic(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_deleted_file(await delete_file(http)))


async def list_anthropic_files(http: HttpRequest) -> JsonResponse | Responder:
    store = require_store(http)
    owner = http.caller.owner
    if ids := select_ids([*http.query.getlist("ids[]"), *http.query.getlist("ids")], http.query):
        files = [file for id in ids if (file := await find_file(store, owner, id)) is not None]
        return JsonResponse(
            render_file_list([_build_metadata(file) for file in files], has_more=False)
        )
    listing = read_file_page_query(http.query)
    rows, has_more = await list_newest_first(store, owner, FILE_KIND, listing, is_complete)
    return JsonResponse(
        render_file_list([_build_metadata(_decode_file(row)) for row in rows], has_more=has_more)
    )


def _decode_file(record: Record) -> FileObject:
    return msgspec.json.decode(record.body, type=FileObject)


def _render_file(file: FileObject) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(_build_metadata(file)))


def _build_metadata(file: FileObject) -> FileMetadata:
    return FileMetadata(
        id=file.id,
        filename=file.filename,
        mime_type=file.mime_type or guess_media_type(file.filename) or OCTET_STREAM,
        size_bytes=file.bytes,
        created_at=format_timestamp(file.created_at),
        expires_at=None if file.expires_at is None else format_timestamp(file.expires_at),
    )
