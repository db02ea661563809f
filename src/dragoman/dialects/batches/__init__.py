"""OpenAI's files and batches: request bodies, objects, and the lines of batch files. Pure; runs nothing."""

from .lines import BatchLine, InvalidBatchLine, encode_result_line, encode_unexecuted_line, read_answer, read_line
from .objects import (
    BatchCounts,
    BatchError,
    BatchErrors,
    BatchObject,
    BatchStatus,
    BatchUsage,
    FileObject,
    read_usage,
    render_deleted,
)
from .reader import PURPOSES, BatchRequest, read_batch_request, read_expiry_seconds, read_purpose

__all__ = [
    "PURPOSES",
    "BatchCounts",
    "BatchError",
    "BatchErrors",
    "BatchLine",
    "BatchObject",
    "BatchRequest",
    "BatchStatus",
    "BatchUsage",
    "FileObject",
    "InvalidBatchLine",
    "encode_result_line",
    "encode_unexecuted_line",
    "read_answer",
    "read_batch_request",
    "read_expiry_seconds",
    "read_line",
    "read_purpose",
    "read_usage",
    "render_deleted",
]
