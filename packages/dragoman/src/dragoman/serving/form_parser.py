"""The parser of multipart forms with one file."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from ..core.errors import RequestError

_EMPTY_FILENAME = b'; filename=""'


async def parse_form(
    headers: Headers, chunks: AsyncGenerator[bytes], *, max_fields: int
) -> FormData:
    """Parse a form of one file and its fields, which must be closed.

    Raises:
        RequestError: the form is malformed or truncated, or has more parts.
    """
    try:
        return await _FormParser(headers, chunks, max_files=1, max_fields=max_fields).parse()
    except (MultiPartException, MultipartParseError, KeyError, ValueError) as error:
        raise RequestError("The body is not a valid form of one file and its fields.") from error


class _FormParser(MultiPartParser):
    """A form parser that treats a part named `file` as a file even without a filename,
    as Anthropic's SDK sends it.

    Raises:
        MultiPartException: the form is malformed or truncated; the base class would
            leave the last part's file open.
    """

    _header_value = b""
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
        self._header_value += data[start:end]
        super().on_header_value(data, start, end)

    def on_header_end(self) -> None:
        _, options = parse_options_header(self._header_value)
        if options.get(b"name") == b"file" and b"filename" not in options:
            super().on_header_value(_EMPTY_FILENAME, 0, len(_EMPTY_FILENAME))
        self._header_value = b""
        super().on_header_end()
