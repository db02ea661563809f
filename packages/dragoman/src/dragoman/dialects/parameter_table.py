"""The support of every parameter of every dialect. Readers apply it, and the docs'
table is generated from it.

A field of a body's struct is honoured unless a row says otherwise; its note is part of
its annotation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct

from ..core.errors import Unsupported
from .field_errors import check_one_of
from .request_body import BodySchema, ParsedBody, read_json_value

MAX_NAME = 64
MAX_UNKNOWN = 32
"""Limits on reported unknown fields: characters of a name, and number of names."""


T = TypeVar("T", bound=Struct)


class SupportStatus(StrEnum):
    HONOURED = "honoured"
    """Works as the vendor documents it."""
    ACCEPTED = "accepted"
    """Accepted silently, because it has no effect by definition or no effect here."""
    WARNED = "warned"
    """Ignored with a warning; the answer is not wrong without it."""
    REFUSED = "refused"
    """Rejected with a 400 that names the field, unless the value requests the default
    behavior.
    """


class ParameterSupport(Struct, frozen=True):
    """One row: the support of one parameter.

    harmless: values besides null for which a REFUSED or WARNED field is accepted
        silently.
    dialect: name of the row's table; empty until the row is in one.
    values: the values that the vendor knows of an ACCEPTED field; others are an error.
    """

    name: str
    status: SupportStatus
    note: str = ""
    harmless: tuple[object, ...] = ()
    dialect: str = ""
    values: tuple[str, ...] = ()


class Note(Struct, frozen=True):
    """The docs' note on a field of a body: `min_p: Annotated[float | None, Note("0
    disables it")] = None`.
    """

    text: str


class ParameterTable:
    """The parameters of one dialect: the fields of its body's structs, which are
    honoured, and other parameters.

    structs: the types that a body is decoded into.
    others: rows of other parameters, and of fields that are not honoured.
    notes: notes by field name that replace those of the structs.
    """

    def __init__(
        self,
        dialect: str,
        structs: tuple[type[Struct], ...],
        others: tuple[ParameterSupport, ...],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._dialect = dialect
        self._structs = structs
        self._notes = dict(notes or {})
        self._others = {row.name: row for row in others}
        assert len(self._others) == len(others), f"a parameter of {dialect} has two rows"
        fields = [name for struct in structs for name in struct.__struct_fields__]
        self.names: Collection[str] = dict.fromkeys((*fields, *self._others))
        """The names of all rows."""

    @cached_property
    def rows(self) -> tuple[ParameterSupport, ...]:
        """All rows. Computed on demand: only the docs need them, and evaluating the
        types would slow the import.
        """
        rows: dict[str, ParameterSupport] = {}
        for struct in self._structs:
            notes = {
                field.name: next(
                    (arg.text for arg in get_args(field.type) if isinstance(arg, Note)), ""
                )
                for field in msgspec.structs.fields(struct)
            } | self._notes
            # A body's own fields come before inherited ones.
            names: list[str] = []
            for base in reversed([base for base in struct.__mro__ if issubclass(base, Struct)]):
                names = [name for name in base.__struct_fields__ if name not in names] + names
            rows |= {
                name: ParameterSupport(name, SupportStatus.HONOURED, notes[name]) for name in names
            }
        return tuple(
            msgspec.structs.replace(row, dialect=self._dialect)
            for row in (rows | self._others).values()
        )

    def classify_body(
        self, parsed: ParsedBody, *schemas: BodySchema[Any]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the warnings, and the unknown names at the top level and below it.
        Raises the errors of `classify`.

        schemas: the schemas that the body has been decoded with.
        """
        warnings, unknown = self.classify(
            parsed.find_other_fields(*[schema.names for schema in schemas])
        )
        nested = [name for schema in schemas for name in schema.nested.find_unknown(parsed.fields)]
        return warnings, (*unknown, *nested)[:MAX_UNKNOWN]

    def classify(self, fields: Mapping[str, Raw]) -> tuple[list[str], tuple[str, ...]]:
        """Return the warnings and the unknown names. Raises Unsupported for a rejected
        field, RequestError for a value that its vendor does not know.

        fields: the body's fields that the dialect's structs do not define.
        """
        warnings: list[str] = []
        unknown: list[str] = []
        for name, raw in fields.items():
            row = self._others.get(name)
            if row is None:
                # A field that only another body of the dialect uses is ignored, but not
                # unknown.
                if name not in self.names:
                    unknown.append(name[:MAX_NAME])
                continue
            if row.status is SupportStatus.ACCEPTED and not row.values:
                continue
            value = read_json_value(raw, name)
            if row.values and isinstance(value, str):
                check_one_of(value, row.values, name)
            if row.status is SupportStatus.ACCEPTED:
                continue
            # Types are compared too, since True == 1 in Python.
            if value is None or any(
                value == harmless and type(value) is type(harmless) for harmless in row.harmless
            ):
                continue
            if row.status is SupportStatus.REFUSED:
                raise Unsupported(f"'{name}' is not supported here: {row.note}.", param=name)
            warnings.append(f"{name}: {row.note}")
        return warnings, tuple(unknown[:MAX_UNKNOWN])


def accept(*names: str, note: str, values: tuple[str, ...] = ()) -> tuple[ParameterSupport, ...]:
    return tuple(
        ParameterSupport(name, SupportStatus.ACCEPTED, note, values=values) for name in names
    )


def warn(name: str, note: str, *harmless: object) -> tuple[ParameterSupport, ...]:
    return (ParameterSupport(name, SupportStatus.WARNED, note, harmless),)


def reject(name: str, note: str, *harmless: object) -> tuple[ParameterSupport, ...]:
    return (ParameterSupport(name, SupportStatus.REFUSED, note, harmless),)


def read_part(
    raw: bytes, schema: BodySchema[T], table: ParameterTable, path: str
) -> tuple[T, list[str], tuple[str, ...]]:
    """Decode an object nested at `path`, and return it with its warnings and unknown
    names.

    raw: its JSON text; empty or null is an empty object.

    Raises the errors of `ParsedBody` and `ParameterTable.classify`.
    """
    parsed = ParsedBody(b"{}" if raw in (b"", b"null") else raw)
    part = parsed.decode(schema)
    warnings, unknown = table.classify_body(parsed, schema)
    return part, warnings, tuple(f"{path}.{name}" for name in unknown)


SHARED_ROWS = (
    *accept("user", "safety_identifier", note="identifies the end user; has no effect"),
    *accept(
        "guided_decoding_backend", "guided_whitespace_pattern", note="there is only one backend"
    ),
    *warn("stream_interval", "every token is sent immediately", 1),
    *reject("use_beam_search", "beam search is not supported", False),
    *reject("length_penalty", "beam search is not supported", 1.0, 1),
    *reject("early_stopping", "beam search is not supported", False),
    *reject("watermarking", "watermarking is not supported", False),
    *reject("spaces_between_special_tokens", "decoding follows the tokenizer", True),
    *reject("truncation_side", "prompts are truncated on the left", "left"),
    *reject("repetition_detection", "not supported"),
    *reject("routed_experts_prompt_start", "routed experts are not reported", 0),
    *reject("return_token_offsets", "offsets are not reported", False),
    *reject("mm_payload", "media payloads are not returned", "tensors"),
    *reject("return_mm_kwargs", "media payloads are not returned", False),
    *reject("ec_transfer_params", "encoder cache transfer is not supported"),
)
"""Rows of vLLM's and OpenAI's parameters that the generating dialects share."""

CACHE_RETENTION = accept(
    "prompt_cache_retention",
    note="in_memory or 24h; caching is automatic",
    # OpenAI's older SDKs have a hyphen.
    values=("in_memory", "in-memory", "24h"),
)
"""The row of OpenAI's dialects for how long prompts stay cached."""

CACHE_THRESHOLD = reject(
    "cache_hit_threshold",
    "only Chat Completions and Completions have a finish reason for it",
    0,
    0.0,
)
"""The row of dialects that cannot say that too little of a prompt is cached."""
