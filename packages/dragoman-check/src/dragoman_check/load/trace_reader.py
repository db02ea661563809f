"""Reads a workload from a file of any known format, which is detected from the content.

Every reader returns the requests, and notes for the user about what the file does not
contain.
"""

from __future__ import annotations

import numpy as np

from .azure_trace import parse_azure
from .burstgpt_trace import read_burstgpt
from .logs.log_reader import read_any
from .logs.measured_log import LogError
from .request_table import RequestTable
from .sharegpt_dataset import read_sharegpt
from .trace_file import read_workload
from .trace_options import Trace, TraceOptions


def read_trace(data: bytes, options: TraceOptions, generator: np.random.Generator) -> Trace:
    """Read a trace; the format is detected from the content. Raises WorkloadError or
    LogError.
    """
    head = data.lstrip()[:4096]
    is_json = head.startswith((b"{", b"["))
    columns = b"" if is_json else head.partition(b"\n")[0].lower()
    if head.startswith(b"[") and b'"conversations"' in head:
        return read_sharegpt(data, options, generator)
    if not head:
        return Trace([])
    if b"contexttokens" in columns:
        return Trace(RequestTable.build("line", parse_azure(data)).sort())
    if b"request tokens" in columns:
        return read_burstgpt(data)
    if b'"output_length"' not in head and not (
        b'"arrival_s"' in head and b'"input_tokens"' in head
    ):
        try:
            log = read_any(data)
            return Trace(list(log.requests), log.notes)
        except LogError:
            if not head.startswith(b"{"):
                raise
    return Trace(
        read_workload(data.splitlines())
    )  # Also for an invalid log: its errors name line and field.
