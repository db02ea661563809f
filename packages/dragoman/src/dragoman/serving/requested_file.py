"""The stored file that a request's path names."""

from __future__ import annotations

from ..core.errors import NotFound
from ..dialects.field_errors import abbreviate
from ..store import CommitConflict, Delete, Key, Record
from .file_store import FILE_KIND, PROCESSED, is_complete
from .http_request import HttpRequest
from .record_pages import require_store


def build_no_such_file_error(id: str) -> NotFound:
    return NotFound(f"No such File object: {abbreviate(id)}", param="id")


def _build_key(http: HttpRequest) -> Key:
    return Key(http.caller.owner, FILE_KIND, http.path_params["file"])


async def load_file_record(http: HttpRequest) -> Record:
    """Return the record of the file in the path.

    Raises:
        NotFound: there is no such file.
    """
    record = await require_store(http).get(_build_key(http))
    if record is None or not is_complete(record):
        raise build_no_such_file_error(http.path_params["file"])
    return record


async def delete_file(http: HttpRequest) -> str:
    """Delete the file in the path, and return its id. Of concurrent deletions only one
    succeeds.

    Raises:
        NotFound: there is no such file.
    """
    key = _build_key(http)
    try:
        await require_store(http).commit(Delete(key, states=frozenset({PROCESSED})))
    except CommitConflict:
        raise build_no_such_file_error(key.id) from None
    return key.id
