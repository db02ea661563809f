"""Anthropic's files: the same as OpenAI's and at the same paths, told and listed as Anthropic does."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping

import msgspec
from starlette.datastructures import FormData

from ..dialects.anthropic.batches import timestamp
from ..dialects.anthropic.files import (
    FileMetadata,
    chosen_ids,
    file_deleted,
    listed_files,
    names_anthropic,
    read_file_listing,
    seconds_until_expiry,
)
from ..dialects.batches import File
from ..store import Record
from . import files
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Made, Whole
from .file_store import FILE, find, is_whole
from .stored import newest_first, store_of

_OCTETS = "application/octet-stream"


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """Those of OpenAI's files, for either vendor's clients."""
    own: Mapping[str, Mapping[str, Handler]] = {
        "/v1/files": {"GET": list_files, "POST": upload},
        "/v1/files/{file}": {"GET": show, "DELETE": delete},
    }
    return {
        path: (access, {method: _either(of, own.get(path, {}).get(method, of)) for method, of in handlers.items()})
        for path, (access, handlers) in files.routes().items()
    }


def _either(openai: Handler, anthropic: Handler) -> Handler:
    async def handle(http: Http) -> Made:
        return await (anthropic if names_anthropic(http.headers) else openai)(http)

    return handle


async def upload(http: Http) -> Whole | Answer:
    return _told(await files.kept(http, _described))


def _described(form: FormData) -> files.Description:
    content = files.content_of(form)
    seconds = seconds_until_expiry(files.said(form).get("expires_in_seconds"))
    name = (content.filename or "").replace("\\", "/").rpartition("/")[2]
    kind = content.content_type or mimetypes.guess_type(name)[0] or _OCTETS
    name = name or f"unnamed{mimetypes.guess_extension(kind) or ''}"
    return files.Description("file_", name[:512], "user_data", seconds, kind)


async def show(http: Http) -> Whole | Answer:
    return _told(_file(await files.whole(http)))


async def delete(http: Http) -> Whole | Answer:
    return Whole(file_deleted(await files.removed(http)))


async def list_files(http: Http) -> Whole | Answer:
    store, owner = store_of(http), http.caller.owner
    if ids := chosen_ids([*http.query.getlist("ids[]"), *http.query.getlist("ids")], http.query):
        found = [file for id in ids if (file := await find(store, owner, id)) is not None]
        return Whole(listed_files([_metadata(file) for file in found], has_more=False))
    asked = read_file_listing(http.query)
    rows, has_more = await newest_first(store, owner, FILE, asked, is_whole)
    return Whole(listed_files([_metadata(_file(row)) for row in rows], has_more=has_more))


def _file(record: Record) -> File:
    return msgspec.json.decode(record.body, type=File)


def _told(file: File) -> Whole:
    return Whole(msgspec.json.encode(_metadata(file)))


def _metadata(file: File) -> FileMetadata:
    return FileMetadata(
        id=file.id,
        filename=file.filename,
        mime_type=file.mime_type or mimetypes.guess_type(file.filename)[0] or _OCTETS,
        size_bytes=file.bytes,
        created_at=timestamp(file.created_at),
        expires_at=None if file.expires_at is None else timestamp(file.expires_at),
    )
