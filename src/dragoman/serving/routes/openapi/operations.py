"""What the API's description says of a method of a route besides what the route itself declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ....dialects.parameter_table import ParameterTable
from ...envelopes import ErrorEnvelope

JSON, EVENTS, LINES, STORED_LINES, TEXT, BINARY, FORM = (
    "application/json",
    "text/event-stream",
    "application/x-ndjson",
    "application/x-jsonl",
    "text/plain",
    "application/octet-stream",
    "multipart/form-data",
)


@dataclass(frozen=True, slots=True)
class Body:
    """A request's JSON object.

    name: of its schema.
    structs: what readers decode it to; the object has the fields of all of them.
    table: the rows of its fields, which are more than the structs': some are accepted without an effect, or refused.
    inner: the bodies of fields that readers decode separately.
    example: the least body that a client would send.
    """

    name: str
    structs: tuple[type[Struct], ...]
    table: ParameterTable | None = None
    inner: Mapping[str, Body] | None = None
    example: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """A request's form with one file.

    fields: by name, the type and what it is for. A name with brackets is one field, as SDKs encode an object.
    """

    fields: Mapping[str, tuple[object, str]]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A response, or an event of one.

    types: the type of the JSON value; one of them if there are several. Empty for what is not JSON.
    """

    types: tuple[object, ...] = ()
    media: str | None = JSON
    status: int = 200
    description: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter. is_list: it may occur several times."""

    name: str
    type: object
    description: str
    is_list: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a route.

    bodies: of the request; one of them if there are several.
    accepts_binary: the body may also be a file.
    generates: it runs a model, so that the headers which concern generation apply.
    is_cached: the response has an ETag, and clients that have it get a 304.
    envelopes: where they are not what the route declares, because the body decides.
    """

    tag: str
    summary: str
    answers: tuple[ApiAnswer, ...]
    bodies: tuple[Body | type[Struct] | Form, ...] = ()
    is_body_optional: bool = False
    accepts_binary: bool = False
    query: tuple[Query, ...] = ()
    generates: bool = False
    is_cached: bool = False
    envelopes: tuple[ErrorEnvelope, ...] = ()
    description: str = ""


Catalogue = Mapping[tuple[str, str], Operation]
"""Operations by method and path."""

PAGE = (
    Query("limit", Annotated[int, Meta(ge=1, le=100)], "The most objects of a page."),
    Query("order", Literal["asc", "desc"], "By time of creation."),
    Query("after", str, "The id of the last object of the page before."),
)
CURSOR = (
    Query("limit", Annotated[int, Meta(ge=1, le=1000)], "The most objects of a page."),
    Query("after_id", str, "The id of the last object of the page before."),
    Query("before_id", str, "The id of the first object of the page after."),
)
MODEL = Query("model", str, "Which model, where several are served.")


class ObjectPage(Struct, frozen=True):
    """A page of a list. first_id, last_id: empty where the page is."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class DeletedObjectAnswer(Struct, frozen=True):
    id: str
    object: str
    deleted: bool


def answer(*types: object, media: str = JSON) -> ApiAnswer:
    return ApiAnswer(types, media)
