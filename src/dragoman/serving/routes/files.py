"""The Files API: upload, list, read, delete, in OpenAI's format; `anthropic_files` has Anthropic's."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.datastructures import FormData

from ...dialects.anthropic.batches import is_anthropic_request
from ...dialects.batches import FileObject, read_expiry_seconds, read_purpose, render_deleted
from ...dialects.body import invalid_value
from ...dialects.pagination import read_page_query
from ...store import Record
from ..auth import Access
from ..endpoint import Handler, HandlerResult, HttpRequest, JsonResponse, Route
from ..envelopes import BY_CLIENT
from ..file_store import FILE_KIND, is_complete, read_chunks
from ..store_access import list_records, require_store
from ..streaming import RawFraming, ReplayResponder, Responder
from ..uploads import UploadDescription, delete_file, find_file_part, load_file_record, read_fields, store_upload
from . import anthropic_files

_BATCH_TTL = 30 * 86400
_MAX_LISTED = 10_000
OCTET_STREAM = (b"content-type", b"application/octet-stream")


def build_routes() -> Sequence[Route]:
    """The routes that both vendors have; a request's headers choose the vendor's format."""
    collection: dict[str, Handler] = {
        "GET": _choose_by_client(list_files, anthropic_files.list_files),
        "POST": _choose_by_client(upload, anthropic_files.upload),
    }
    item: dict[str, Handler] = {
        "GET": _choose_by_client(show, anthropic_files.show),
        "DELETE": _choose_by_client(delete, anthropic_files.delete),
    }
    return (
        Route("/v1/files", Access.USER, BY_CLIENT, collection),
        Route("/v1/files/{file}", Access.USER, BY_CLIENT, item),
        Route("/v1/files/{file}/content", Access.USER, BY_CLIENT, {"GET": show_content}),
    )


def _choose_by_client(openai: Handler, anthropic: Handler) -> Handler:
    async def handle(http: HttpRequest) -> HandlerResult:
        return await (anthropic if is_anthropic_request(http.headers) else openai)(http)

    return handle


async def upload(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(await store_upload(http, _describe)))


def _describe(form: FormData) -> UploadDescription:
    file, fields = find_file_part(form), read_fields(form)
    purpose = read_purpose(fields.get("purpose"))
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if seconds is None:
        # OpenAI's defaults: 30 days for batches' files, no limit for others.
        ttl_seconds = _BATCH_TTL if purpose == "batch" else None
    elif anchor != "created_at":
        raise invalid_value("expires_after.anchor", "expected 'created_at'")
    else:
        ttl_seconds = read_expiry_seconds(seconds)
    return UploadDescription("file-", (file.filename or "upload")[:512], purpose, ttl_seconds)


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse((await load_file_record(http)).body)


async def list_files(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=True, default=_MAX_LISTED, max_limit=_MAX_LISTED)
    purpose = http.query.get("purpose")

    def matches(record: Record) -> bool:
        return is_complete(record) and (
            purpose is None or msgspec.json.decode(record.body, type=FileObject).purpose == purpose
        )

    return JsonResponse(await list_records(require_store(http), http.caller.owner, FILE_KIND, paging, matches))


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(render_deleted(await delete_file(http), FILE_KIND))


async def show_content(http: HttpRequest) -> JsonResponse | Responder:
    record = await load_file_record(http)
    file = msgspec.json.decode(record.body, type=FileObject)
    # Clients choose the content: `nosniff` keeps a browser from showing it as a page of this server.
    length = (b"content-length", str(file.bytes).encode())
    # Streamed from the store, a few chunks at a time, for files of any size.
    return ReplayResponder(
        read_chunks(require_store(http), record.key),
        RawFraming(),
        http.build_response_start([*http.build_headers(OCTET_STREAM), length, (b"x-content-type-options", b"nosniff")]),
        http.service.stream_monitor,
    )
