"""The types that describe the requests and responses of an operation in the OpenAPI
document, with those that several routes share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
STORED_LINES = "application/x-jsonl"
TEXT = "text/plain"
BINARY = "application/octet-stream"
FORM = "multipart/form-data"


class Form(Struct, frozen=True):
    """A multipart form with one file.

    fields: type and description by name. Brackets in a name are how SDKs encode a field
        of an object.
    """

    fields: Mapping[str, tuple[object, str]]


class ApiResponse(Struct, frozen=True):
    """A response, or an event or line of a streamed response.

    types: the possible types of the JSON value; empty if it is not JSON.
    media: the content type; None for an empty body.
    """

    types: tuple[object, ...] = ()
    media: str | None = JSON
    status: int = 200
    description: str = ""


class Query(Struct, frozen=True):
    """A query parameter.

    is_list: whether it may occur several times.
    """

    name: str
    type: object
    description: str
    is_list: bool = False
    is_required: bool = False


PAGE = (
    Query("limit", Annotated[int, Meta(ge=1, le=100)], "Maximum number of objects per page."),
    Query("order", Literal["asc", "desc"], "The order by creation time."),
    Query("after", str, "The id of the last object of the previous page."),
)


CURSOR = (
    Query("limit", Annotated[int, Meta(ge=1, le=1000)], "Maximum number of objects per page."),
    Query("after_id", str, "The id of the last object of the previous page."),
    Query("before_id", str, "The id of the first object of the next page."),
)


MODEL = Query("model", str, "The model, if several are served.")


class ObjectPage(Struct, frozen=True):
    """A page of a list.

    first_id, last_id: empty if the page is empty.
    """

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class DeletedObjectResponse(Struct, frozen=True):
    id: str
    object: str
    deleted: bool


def response(*types: object, media: str = JSON) -> ApiResponse:
    return ApiResponse(types, media)


OBJECT_PAGE = response(ObjectPage)
