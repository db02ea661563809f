"""The lines of the results of Anthropic's message batches."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from .message_batches import MessageBatchCounts


class SucceededResult(Struct, frozen=True, tag_field="type", tag="succeeded"):
    message: Raw


class ErroredResult(Struct, frozen=True, tag_field="type", tag="errored"):
    error: Raw


class CanceledResult(Struct, frozen=True, tag_field="type", tag="canceled"):
    pass


class ExpiredResult(Struct, frozen=True, tag_field="type", tag="expired"):
    pass


class MessageBatchResult(Struct, frozen=True):
    custom_id: str
    result: SucceededResult | ErroredResult | CanceledResult | ExpiredResult


_result_decoder = msgspec.json.Decoder(MessageBatchResult)


def encode_result(custom_id: str, status: int, body: bytes) -> bytes:
    """Encode one line of the results.

    status: HTTP status of the response.
    body: a message, or the error envelope.
    """
    result = SucceededResult(Raw(body)) if status < 400 else ErroredResult(Raw(body))
    return msgspec.json.encode(MessageBatchResult(custom_id, result)) + b"\n"


def encode_missing_result(custom_id: str, *, canceled: bool) -> bytes:
    return (
        msgspec.json.encode(
            MessageBatchResult(custom_id, CanceledResult() if canceled else ExpiredResult())
        )
        + b"\n"
    )


def count_result(counts: MessageBatchCounts, line: bytes) -> MessageBatchCounts:
    """Return the counts with one more result, a line of the results file."""
    match _result_decoder.decode(line).result:
        case SucceededResult():
            return msgspec.structs.replace(counts, succeeded=counts.succeeded + 1)
        case ErroredResult():
            return msgspec.structs.replace(counts, errored=counts.errored + 1)
        case CanceledResult():
            return msgspec.structs.replace(counts, canceled=counts.canceled + 1)
        case ExpiredResult():
            return msgspec.structs.replace(counts, expired=counts.expired + 1)
