"""The formats of dates and times (RFC 3339, 5.6 and 5.7) as regular expressions.

llguidance's own accept the 31st of every month, and a leap second in every minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

_YEAR = "[0-9]{4}"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
"""Divisible by 4; of those divisible by 100, only those divisible by 400."""
_MONTHS_OF_31 = "(?:0[13578]|1[02])"
_MONTHS_OF_30 = "(?:0[469]|11)"
_DATE = (
    f"(?:{_YEAR}-(?:{_MONTHS_OF_31}-(?:0[1-9]|[12][0-9]|3[01])"
    f"|{_MONTHS_OF_30}-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# Without February 28: an expression for years that are no leap years is not worth a leap
# second that was never inserted in February.
_LAST_OF_MONTH = f"(?:{_YEAR}-(?:{_MONTHS_OF_31}-31|{_MONTHS_OF_30}-30)|{_LEAP_YEAR}-02-29)"
_FIRST_OF_MONTH = f"{_YEAR}-(?:0[1-9]|1[0-2])-01"
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]+)?"
_TIME = f"{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"
_OFFSET_MINUTES = (0, 15, 30, 45)
"""The minutes of offsets with which leap seconds are written: those of all time zones."""
_LAST_MINUTE = 23 * 60 + 59
"""The minute of a day, in UTC, that may have a leap second."""


def _list_leap_seconds(sign: int) -> Iterator[str]:
    """Yield the leap seconds in the time zones of one sign, and UTC among the negative."""
    mark = "+" if sign > 0 else "-"
    for hours in range(24):
        for minutes in _OFFSET_MINUTES:
            offset = hours * 60 + minutes
            if sign > 0 and offset == 0:
                continue
            local = (_LAST_MINUTE + sign * offset) % (24 * 60)
            yield (f"{local // 60:02}:{local % 60:02}:60{_FRACTION}\\{mark}{hours:02}:{minutes:02}")
    if sign < 0:
        yield f"23:59:60{_FRACTION}(?:[Zz]|\\+00:00)"


# At the end of a month in UTC, which is its last day there and in the west, and the first
# of the next month in the east.
_LEAP_IN_WEST = f"(?:{'|'.join(_list_leap_seconds(-1))})"
_LEAP_IN_EAST = f"(?:{'|'.join(_list_leap_seconds(1))})"

DATE_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "date": f"^{_DATE}$",
        "time": f"^(?:{_TIME}|{_LEAP_IN_WEST}|{_LEAP_IN_EAST})$",
        "date-time": (
            f"^(?:{_DATE}[Tt]{_TIME}|{_LAST_OF_MONTH}[Tt]{_LEAP_IN_WEST}"
            f"|{_FIRST_OF_MONTH}[Tt]{_LEAP_IN_EAST})$"
        ),
    }
)
"""Patterns by the name of the format."""
