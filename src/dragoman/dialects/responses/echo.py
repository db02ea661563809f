"""The request fields that the response object repeats, identical in all events."""

from __future__ import annotations

from msgspec import Struct

from ..json_encoding import encode_string, encode_string_or_null


class Echo(Struct, frozen=True, kw_only=True):
    """The repeated fields.

    store, background, previous_response_id, conversation: the effective values, which the server decides.
    rest: all other fields as JSON, without the braces.
    """

    rest: bytes
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation: str | None = None

    def render(self) -> bytes:
        """Render the fields as JSON, without the braces."""
        conversation = (
            b"" if self.conversation is None else b',"conversation":{"id":%s}' % encode_string(self.conversation)
        )
        return b'"previous_response_id":%s,"store":%s,"background":%s%s,%s' % (
            encode_string_or_null(self.previous_response_id), encode_bool(self.store), encode_bool(self.background),
            conversation, self.rest,
        )  # fmt: skip


def encode_bool(value: bool) -> bytes:
    return b"true" if value else b"false"
