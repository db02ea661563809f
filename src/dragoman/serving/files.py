"""OpenAI's files: uploaded, listed, read, deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import BinaryIO, NamedTuple

import anyio.to_thread
import msgspec
from msgspec import UNSET, UnsetType
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from ..core.errors import BodyTooLarge, DragomanError, NotFound, RequestError, UnsupportedMedia
from ..dialects.batches import File, deleted, expiry_seconds, purpose_of
from ..dialects.body import echo, invalid, missing
from ..dialects.pages import read_paging
from ..store import Append, Delete, Item, Key, Put, Record, Refused, Replace, Store
from .answer import Answer, ReplayedAnswer
from .auth import Access
from .body import ClientGone
from .endpoint import Handler, Http, Whole
from .file_store import CONTENT, FILE, PROCESSED, UPLOADING, is_whole, pieces
from .stored import list_records, store_of

PIECE = 512 * 1024
"""Bytes that are written and read at a time."""
_BATCH_TTL = 30 * 86400
_MOST_LISTED = 10_000
_UNNAMED = b'; filename=""'

OCTETS = (b"content-type", b"application/octet-stream")


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    return {
        "/v1/files": (Access.USER, {"GET": list_files, "POST": upload}),
        "/v1/files/{file}": (Access.USER, {"GET": show, "DELETE": delete}),
        "/v1/files/{file}/content": (Access.USER, {"GET": content}),
    }


class Description(NamedTuple):
    """What an upload is to be. seconds: after which it expires. mime_type: where its vendor tells it."""

    prefix: str
    name: str
    purpose: str
    seconds: int | None
    mime_type: str | UnsetType = UNSET


async def upload(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(await kept(http, _described)))


async def kept(http: Http, describe: Callable[[FormData], Description]) -> File:
    """An upload. The pieces are written while nobody sees the file; it is there when it is whole."""
    store = store_of(http)
    form = await _form(http)
    try:
        told = describe(form)
        created = int(http.service.clock.now())
        file = File(
            id=http.service.ids.new(told.prefix),
            bytes=0,
            created_at=created,
            filename=told.name,
            purpose=told.purpose,
            expires_at=None if told.seconds is None else created + told.seconds,
            mime_type=told.mime_type,
        )
        put = putting(http.caller.owner, file, UPLOADING, store.run)
        await store.commit(put)
        size = await _write(store, put.key, content_of(form).file)
    finally:
        await form.close()
    whole = msgspec.structs.replace(file, bytes=size)
    await store.commit(Replace(put.key, PROCESSED, msgspec.json.encode(whole)))
    return whole


def putting(owner: str, file: File, state: str, run: str | None = None) -> Put:
    """A file that is being written, and is not seen while it is in `state`."""
    body = msgspec.json.encode(file)
    return Put(Key(owner, FILE, file.id), file.created_at, body, state, run=run, expires=file.expires_at, pinned=True)


async def _form(http: Http) -> FormData:
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise UnsupportedMedia("Send the file as `Content-Type: multipart/form-data`.")
    if http.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("File uploads cannot have a Content-Encoding.")
    try:
        return await _FormParser(http.headers, _received(http), max_files=1, max_fields=8).parse()
    except (MultiPartException, MultipartParseError, KeyError, ValueError) as error:
        raise RequestError("The body is not a valid form of one file and its fields.") from error


class _FormParser(MultiPartParser):
    """A part called `file` is a file, even without a filename: Anthropic's SDK sends bytes with none.

    Raises MultiPartException for a form without its end too: the parser would leave the file of the last part open.
    """

    _told = b""
    _has_end = False

    async def parse(self) -> FormData:
        form = await super().parse()
        if not self._has_end:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("The form has no end.")
        return form

    def on_end(self) -> None:
        self._has_end = True
        super().on_end()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._told += data[start:end]
        super().on_header_value(data, start, end)

    def on_header_end(self) -> None:
        _, options = parse_options_header(self._told)
        if options.get(b"name") == b"file" and b"filename" not in options:
            super().on_header_value(_UNNAMED, 0, len(_UNNAMED))
        self._told = b""
        super().on_header_end()


async def _received(http: Http) -> AsyncGenerator[bytes]:
    limit, size = http.service.options.max_file_bytes, 0
    while True:
        message = await http.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        size += len(message.get("body", b""))
        if size > limit:
            raise BodyTooLarge(f"The file is larger than the limit of {limit} bytes.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def content_of(form: FormData) -> UploadFile:
    """Raises RequestError where there is none."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise missing("file")
    return file


def said(form: FormData) -> Mapping[str, str]:
    """The fields beside the file."""
    return {name: text for name, text in form.multi_items() if isinstance(text, str)}


def _described(form: FormData) -> Description:
    file, fields = content_of(form), said(form)
    purpose = purpose_of(fields.get("purpose"))
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if seconds is None:
        expiry = _BATCH_TTL if purpose == "batch" else None
    elif anchor != "created_at":
        raise invalid("expires_after.anchor", "expected 'created_at'")
    else:
        expiry = expiry_seconds(seconds)
    return Description("file-", (file.filename or "upload")[:512], purpose, expiry)


async def _write(store: Store, key: Key, content: BinaryIO) -> int:
    size = 0
    try:
        while piece := await anyio.to_thread.run_sync(content.read, PIECE):
            await store.commit(Append(key, CONTENT, (Item(piece),)))
            size += len(piece)
    except DragomanError:
        await store.commit(Delete(key))
        raise
    return size


async def show(http: Http) -> Whole | Answer:
    return Whole((await whole(http)).body)


async def list_files(http: Http) -> Whole | Answer:
    asked = read_paging(http.query, descending=True, default=_MOST_LISTED, most=_MOST_LISTED)
    purpose = http.query.get("purpose")

    def matches(record: Record) -> bool:
        return is_whole(record) and (purpose is None or msgspec.json.decode(record.body, type=File).purpose == purpose)

    return Whole(await list_records(store_of(http), http.caller.owner, FILE, asked, matches))


async def delete(http: Http) -> Whole | Answer:
    return Whole(deleted(await removed(http), FILE))


async def removed(http: Http) -> str:
    """The id of the file that was there. Of several at once one succeeds."""
    key = _key(http)
    try:
        await store_of(http).commit(Delete(key, states=frozenset({PROCESSED})))
    except Refused:
        raise no_such_file(key.id) from None
    return key.id


async def content(http: Http) -> Whole | Answer:
    record = await whole(http)
    file = msgspec.json.decode(record.body, type=File)
    length = (b"content-length", str(file.bytes).encode())
    return ReplayedAnswer(
        pieces(store_of(http), record.key),
        Bare(),
        http.opening([*http.head(OCTETS), length, (b"x-content-type-options", b"nosniff")]),
        http.service.lookout,
    )


class Bare:
    """Nothing is said beside the content, and no words of ours end it: a failure breaks the connection."""

    end = b""
    keepalive = b""

    def error(self, error: DragomanError) -> bytes:
        raise error


def no_such_file(id: str) -> NotFound:
    return NotFound(f"No such File object: {echo(id)}", param="id")


def _key(http: Http) -> Key:
    return Key(http.caller.owner, FILE, http.path_params["file"])


async def whole(http: Http) -> Record:
    """The record of the file that the path names. Raises NotFound."""
    record = await store_of(http).get(_key(http))
    if record is None or not is_whole(record):
        raise no_such_file(http.path_params["file"])
    return record
