"""The description of an operation: what routes do not declare themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ....dialects.parameter_table import ParameterTable
from ...error_envelope import ErrorEnvelope

JSON = "application/json"


EVENTS = "text/event-stream"


LINES = "application/x-ndjson"


STORED_LINES = "application/x-jsonl"


TEXT = "text/plain"


BINARY = "application/octet-stream"


FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Body:
    """The JSON object of a request.

    name: the name of its schema.
    structs: the structs that readers decode it to; the object has the fields of all of
        them.
    table: the rows of its fields, including fields that no struct has: accepted without
        an effect, or rejected.
    nested: the bodies of fields that readers decode separately, by field.
    example: a minimal body.
    """

    name: str
    structs: tuple[type[Struct], ...]
    table: ParameterTable | None = None
    nested: Mapping[str, Body] | None = None
    example: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart form with one file.

    fields: type and description by name. Brackets in a name are how SDKs encode a field
        of an object.
    """

    fields: Mapping[str, tuple[object, str]]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response, or an event or line of a streamed response.

    types: the possible types of the JSON value; empty if it is not JSON.
    media: the content type; None for an empty body.
    """

    types: tuple[object, ...] = ()
    media: str | None = JSON
    status: int = 200
    description: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter.

    is_list: whether it may occur several times.
    """

    name: str
    type: object
    description: str
    is_list: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a route.

    responses: the possible responses, except errors.
    bodies: the possible bodies of the request.
    accepts_binary: the body may also be a file.
    generates: the method generates text, so the headers for generation apply.
    is_cached: the response has an ETag, and clients that have this version get a 304.
    envelopes: the error envelopes if the body decides between several; empty means the
        route's envelope.
    """

    tag: str
    summary: str
    responses: tuple[ApiResponse, ...]
    bodies: tuple[Body | type[Struct] | Form, ...] = ()
    is_body_optional: bool = False
    accepts_binary: bool = False
    query: tuple[Query, ...] = ()
    generates: bool = False
    is_cached: bool = False
    envelopes: tuple[ErrorEnvelope, ...] = ()
    description: str = ""


Operations = Mapping[tuple[str, str], Operation]
"""Operations by method and path."""


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
