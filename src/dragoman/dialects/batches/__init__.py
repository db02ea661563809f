"""OpenAI's files and batches: their objects, what creates them, and the lines of their files. Pure; runs nothing."""

from .lines import BadLine, Line, answer_in, read_line, result_line, unexecuted_line
from .objects import Batch, BatchError, Counts, Errors, File, Status, Usage, deleted, usage_of
from .reader import PURPOSES, BatchOrder, expiry_seconds, purpose_of, read_batch_order

__all__ = [
    "PURPOSES",
    "BadLine",
    "Batch",
    "BatchError",
    "BatchOrder",
    "Counts",
    "Errors",
    "File",
    "Line",
    "Status",
    "Usage",
    "answer_in",
    "deleted",
    "expiry_seconds",
    "purpose_of",
    "read_batch_order",
    "read_line",
    "result_line",
    "unexecuted_line",
    "usage_of",
]
