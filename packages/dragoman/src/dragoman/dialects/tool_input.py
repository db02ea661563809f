"""Streams the arguments of a call as a JSON object, even if the model wrote invalid
JSON.

The official SDKs parse the partial input after every delta, and raise in the middle of
the stream if it cannot become JSON. The output is therefore always a prefix of a JSON
object: arguments that are invalid JSON end as an object with INVALID_JSON_KEY.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from ..core.events import FinishReason
from .json_encoding import encode_string, escape_line_breaks, replace_surrogates

INVALID_JSON_KEY = "INVALID_JSON"
"""The key for arguments that are invalid JSON, from Anthropic's documentation."""
MAX_DEPTH = 100
MAX_SCALAR = 1_000
"""Maximum characters of a scalar. Some clients' parsers fail beyond this and MAX_DEPTH.
"""

# The lexical grammar of JSON (RFC 8259). _SCALAR matches a candidate, whose validity
# _VALID_SCALAR checks when it is complete; _PARTIAL_ESCAPE matches an escape that the
# next chunk may complete.
_BLANKS = re.compile(r"[ \t\r\n]*")
_PLAIN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r'[^ \t\r\n,:"\[\]{}]+')
_VALID_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PARTIAL_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_REPLACEMENT = r"\ufffd"


def is_cut_off(reason: FinishReason, stop: str | int | None) -> bool:
    """Whether an answer that ended this way may have ended within the arguments of its
    last call.
    """
    # A stop string may match inside a call and truncates it, as a token limit does.
    return reason is not FinishReason.STOP or isinstance(stop, str)


class ToolInputStreamer:
    """Incremental JSON validator; accepts the arguments in any chunks.

    Strings are sent as they arrive, scalars when complete, keys only together with
    their values, and the last bracket at the end. Strings that some parsers reject are
    repaired: a backslash that escapes nothing is doubled, control characters are
    escaped, and a lone surrogate becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._raw: list[str] = []
        self._undecided = ""
        self._pending: list[str] = []
        """Parsed text that must not be sent before a value follows."""
        self._sent: list[str] = []
        self._complete_count = 0
        """Length of `_sent` when no string was open."""
        self._closers: list[str] = []
        self._state: Callable[[ToolInputStreamer, str, int], int] = ToolInputStreamer._read_root
        self._is_broken = False

    def feed(self, text: str) -> str:
        """Add text, and return what can be sent now; possibly nothing."""
        self._raw.append(text)
        if self._is_broken:
            return ""
        sent_count = len(self._sent)
        text = self._undecided + text
        position = 0
        while position < len(text):
            consumed = self._state(self, text, position)
            if not consumed:
                break
            position += consumed
        self._undecided = "" if self._is_broken else text[position:]
        return "".join(self._sent[sent_count:])

    def end(self, *, is_cut_off: bool) -> str:
        """End the input and return the remaining output.

        is_cut_off: the answer was truncated, so incomplete JSON is not an error.
        """
        if self._state is ToolInputStreamer._read_end and not self._is_broken:
            return self._send(is_complete=True)
        raw = "".join(self._raw)
        if not self._is_broken and (is_cut_off or not raw.strip(" \t\r\n")):
            return ""
        # Close everything that is open, and add the model's whole output under
        # INVALID_JSON_KEY.
        quote = '"' if len(self._sent) > self._complete_count else ""
        comma = "," if len(self._sent) > 1 else ""
        opening = "" if self._sent else "{"
        closers = "".join(reversed(self._closers[1:]))
        self._pending = [
            opening,
            quote,
            closers,
            comma,
            f'"{INVALID_JSON_KEY}":',
            encode_string(raw).decode(),
            "}",
        ]
        self._closers = []
        return self._send(is_complete=True)

    @property
    def value(self) -> str:
        """The object as an SDK parses it. A truncated string, number or literal at the
        end is left out.
        """
        return (
            "".join(self._sent[: self._complete_count]) + "".join(reversed(self._closers)) or "{}"
        )

    def _send(self, *, is_complete: bool) -> str:
        """Send everything pending. is_complete: no string is open after it."""
        text = "".join(self._pending)
        self._pending.clear()
        self._sent.append(text)
        if is_complete:
            self._complete_count = len(self._sent)
        return text

    def _mark_broken(self) -> int:
        self._is_broken = True
        return 0

    # State functions. Each returns how many characters it consumed; 0 if it needs more
    # input or marked it broken.

    def _skip_blanks(self, text: str, position: int) -> int:
        match = _BLANKS.match(text, position)
        size = match.end() - position if match else 0
        if size:
            self._pending.append(text[position : position + size])
        return size

    def _read_root(self, text: str, position: int) -> int:
        if blank := self._skip_blanks(text, position):
            return blank
        return (
            self._open("}", ToolInputStreamer._read_first_key, "{")
            if text[position] == "{"
            else self._mark_broken()
        )

    def _read_first_key(self, text: str, position: int) -> int:
        return self._close("}") if text[position] == "}" else self._read_key(text, position)

    def _read_key(self, text: str, position: int) -> int:
        if blank := self._skip_blanks(text, position):
            return blank
        if text[position] != '"':
            return self._mark_broken()
        self._pending.append('"')
        self._state = ToolInputStreamer._read_in_key
        return 1

    def _read_in_key(self, text: str, position: int) -> int:
        return self._read_string(text, position)

    def _read_colon(self, text: str, position: int) -> int:
        if blank := self._skip_blanks(text, position):
            return blank
        if text[position] != ":":
            return self._mark_broken()
        self._pending.append(":")
        self._state = ToolInputStreamer._read_value
        return 1

    def _read_first_value(self, text: str, position: int) -> int:
        return self._close("]") if text[position] == "]" else self._read_value(text, position)

    def _read_value(self, text: str, position: int) -> int:
        if blank := self._skip_blanks(text, position):
            return blank
        match text[position]:
            case '"':
                self._pending.append('"')
                self._send(is_complete=False)
                self._state = ToolInputStreamer._read_in_string
                return 1
            case "{":
                return self._open("}", ToolInputStreamer._read_first_key, "{")
            case "[":
                return self._open("]", ToolInputStreamer._read_first_value, "[")
            case _:
                return self._read_scalar(text, position)

    def _read_in_string(self, text: str, position: int) -> int:
        return self._read_string(text, position)

    def _read_comma(self, text: str, position: int) -> int:
        if blank := self._skip_blanks(text, position):
            return blank
        if text[position] == self._closers[-1]:
            return self._close(text[position])
        if text[position] != ",":
            return self._mark_broken()
        self._pending.append(",")
        self._state = (
            ToolInputStreamer._read_key
            if self._closers[-1] == "}"
            else ToolInputStreamer._read_value
        )
        return 1

    def _read_end(self, text: str, position: int) -> int:
        return self._skip_blanks(text, position) or self._mark_broken()

    def _open(
        self, closer: str, state: Callable[[ToolInputStreamer, str, int], int], opener: str
    ) -> int:
        if len(self._closers) == MAX_DEPTH:
            return self._mark_broken()
        self._closers.append(closer)
        self._pending.append(opener)
        self._send(is_complete=True)
        self._state = state
        return 1

    def _close(self, closer: str) -> int:
        """Close a bracket. The last one stays pending, because invalid text could still
        follow.
        """
        self._closers.pop()
        self._pending.append(closer)
        if self._closers:
            self._send(is_complete=True)
        self._state = (
            ToolInputStreamer._read_comma if self._closers else ToolInputStreamer._read_end
        )
        return 1

    def _read_scalar(self, text: str, position: int) -> int:
        match = _SCALAR.match(text, position)
        if match is None or match.end() - position > MAX_SCALAR:
            return self._mark_broken()
        # The scalar may go on in the next chunk: 1 may be the beginning of 10.
        if match.end() == len(text):
            return 0
        if not _VALID_SCALAR.fullmatch(match.group()):
            return self._mark_broken()
        self._pending.append(match.group())
        self._send(is_complete=True)
        self._state = ToolInputStreamer._read_comma
        return match.end() - position

    def _read_string(self, text: str, position: int) -> int:
        if plain_match := _PLAIN_STRING.match(text, position):
            return self._emit(plain_match.group(), plain_match.end() - position)
        match text[position]:
            case '"':
                self._pending.append('"')
                if self._state is ToolInputStreamer._read_in_key:
                    self._state = ToolInputStreamer._read_colon
                else:
                    self._send(is_complete=True)
                    self._state = ToolInputStreamer._read_comma
                return 1
            case "\\":
                return self._read_escape(text, position)
            # JSON forbids raw control characters in strings (RFC 8259, 7), and models
            # write line breaks in code all the same.
            case control_character:
                return self._emit(encode_string(control_character).decode()[1:-1], 1)

    def _read_escape(self, text: str, position: int) -> int:
        match = _ESCAPE.match(text, position)
        if match is None:
            is_partial = _PARTIAL_ESCAPE.fullmatch(text, position)
            return 0 if is_partial else self._emit("\\\\", 1)
        escape = match.group()
        if escape[1] != "u" or not 0xD800 <= int(escape[2:], 16) < 0xE000:
            return self._emit(escape, len(escape))
        # A high surrogate needs a low one behind it, whose end may come with the next
        # chunk.
        low = text[position + 6 : position + 12]
        if _LOW_SURROGATE.match(escape) or not _LOW_SURROGATE.match(low + r"\udc00"[len(low) :]):
            return self._emit(_REPLACEMENT, 6)
        return self._emit(escape + low, 12) if len(low) == 6 else 0

    def _emit(self, piece: str, size: int) -> int:
        """Emit a piece of a string. A key's piece stays pending until its value."""
        self._pending.append(piece)
        if self._state is ToolInputStreamer._read_in_string:
            self._send(is_complete=False)
        return size


def render_whole_input(arguments: str, *, is_incomplete: bool) -> bytes | None:
    """Render arguments as an object on one line; None if the answer was cut off within
    them, which an object cannot express.
    """
    if is_incomplete and not _is_object(arguments):
        return None
    streamer = ToolInputStreamer()
    streamer.feed(arguments)
    streamer.end(is_cut_off=False)
    # A model may write line breaks between members.
    value = msgspec.json.format(replace_surrogates(streamer.value).encode(), indent=-1)
    return escape_line_breaks(value)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
