"""Public traces and data sets as workloads: Azure, BurstGPT, ShareGPT, and the logs of benchmark tools.

Every reader returns the requests and notes for the user about what the file does not tell.

- Azure LLM inference traces (github.com/Azure/AzurePublicDataset): CSV of TIMESTAMP, ContextTokens, GeneratedTokens.
- BurstGPT (github.com/HPMLL/BurstGPT): CSV of Timestamp (seconds), Request tokens, Response tokens; failures have none.
- ShareGPT: JSON list of conversations of texts, without times and token counts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
import numpy as np
from msgspec import Struct

from .logs.detect import read_any
from .logs.log import LogError
from .synthetic import generate_arrivals
from .workload import RequestTable, WorkloadError, WorkloadRequest, check_workload, read_workload

CHARACTERS_PER_TOKEN = 4.0
"""Of English text with a vocabulary of 100,000 tokens or more."""
_BLOCK = 16
_FRACTION = re.compile(r"\.(\d{6})\d+")


class TraceOptions(Struct, frozen=True):
    """What a data set without times is given: conversations that begin at `rate` a second, by a Poisson process."""

    rate: float = 1.0
    think_seconds: float = 5.0
    max_requests: int | None = None


class Trace(Struct, frozen=True):
    requests: Sequence[WorkloadRequest]
    notes: tuple[str, ...] = ()


class _Message(Struct):
    sender: str = msgspec.field(name="from")
    value: str = ""


class _Conversation(Struct):
    id: str = ""
    conversations: list[_Message] = []


def read_trace(data: bytes, options: TraceOptions, generator: np.random.Generator) -> Trace:
    """Read a trace of any known format, which its contents tell. Raises WorkloadError or LogError."""
    head = data.lstrip()[:4096]
    is_json = head.startswith((b"{", b"["))
    columns = b"" if is_json else head.partition(b"\n")[0].lower()
    if head.startswith(b"[") and b'"conversations"' in head:
        return _read_sharegpt(data, options, generator)
    if not head:
        return Trace([])
    if b"contexttokens" in columns:
        return Trace(RequestTable.build("line", _parse_azure(data)).sort())
    if b"request tokens" in columns:
        return _read_burstgpt(data)
    if b'"output_length"' not in head and not (b'"arrival_s"' in head and b'"input_tokens"' in head):
        try:
            log = read_any(data)
            return Trace(list(log.requests), log.notes)
        except LogError:
            if not head.startswith(b"{"):
                raise
    return Trace(read_workload(data.splitlines()))  # Also for what is no log: the message names line and field.


def _read_rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV with lower-case column names, numbered as the file's lines."""
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
    try:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            yield number, {(name or "").strip().lower(): (value or "").strip() for name, value in row.items()}
    except UnicodeError:
        raise WorkloadError("the file is not UTF-8 text") from None


def _parse_azure(data: bytes) -> Iterator[tuple[int, float, int, int]]:
    begin: float | None = None
    for number, row in _read_rows(data):
        try:
            # Seven digits of a second, where Python reads six.
            at = datetime.fromisoformat(_FRACTION.sub(r".\1", row["timestamp"])).timestamp()
            inputs, outputs = int(row["contexttokens"]), int(row["generatedtokens"])
        except (KeyError, ValueError):
            raise WorkloadError(
                f"line {number}: an Azure trace has TIMESTAMP, ContextTokens, GeneratedTokens"
            ) from None
        begin = at if begin is None else begin
        if inputs > 0 and outputs > 0:
            yield number, at - begin, inputs, outputs


def _read_burstgpt(data: bytes) -> Trace:
    failed = 0

    def parse() -> Iterator[tuple[int, float, int, int]]:
        nonlocal failed
        begin: float | None = None
        for number, row in _read_rows(data):
            try:
                at = float(row["timestamp"])
                inputs, outputs = int(float(row["request tokens"])), int(float(row["response tokens"]))
            except (KeyError, ValueError, OverflowError):
                raise WorkloadError(
                    f"line {number}: a BurstGPT trace has Timestamp, Request tokens, Response tokens"
                ) from None
            if inputs < 1 or outputs < 1:
                failed += 1
                continue
            begin = at if begin is None else begin
            yield number, at - begin, inputs, outputs

    requests = RequestTable.build("line", parse()).sort()
    return Trace(requests, (f"{failed} failed requests without tokens are skipped",) if failed else ())


def _read_sharegpt(data: bytes, options: TraceOptions, generator: np.random.Generator) -> Trace:
    """Conversations whose turns wait for the answer before them; every turn's prompt is all that was said before."""
    try:
        conversations = msgspec.json.decode(data, type=list[_Conversation])
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"ShareGPT: {error}") from None
    times = generate_arrivals(generator, rate=options.rate)
    requests: list[WorkloadRequest] = []
    for index, conversation in enumerate(conversations):
        turns = list(_list_turns(conversation))
        if not turns or (options.max_requests is not None and len(requests) >= options.max_requests):
            continue
        begins = next(times)
        total = 0
        for turn, (input_tokens, output_tokens) in enumerate(turns):
            inputs = total + input_tokens
            total = inputs + output_tokens
            requests.append(
                WorkloadRequest(
                    f"c{index}-t{turn}",
                    float(generator.exponential(options.think_seconds)) if turn else begins,
                    inputs,
                    output_tokens,
                    tuple(f"c{index}/{block}" for block in range(total // _BLOCK)),
                    _BLOCK,
                    after=f"c{index}-t{turn - 1}" if turn else None,
                )
            )
    selected = requests if options.max_requests is None else requests[: options.max_requests]
    check_workload(selected)
    return Trace(
        selected,
        (
            f"ShareGPT has no times: {options.rate:g} conversations a second, and {options.think_seconds:g} seconds "
            "between turns (--request-rate, --think-time)",
            f"the first {len(selected)} requests of the file (--num-prompts)",
            f"ShareGPT has texts: one token is taken as {CHARACTERS_PER_TOKEN:g} characters",
        ),
    )


def _list_turns(conversation: _Conversation) -> Iterator[tuple[int, int]]:
    """Tokens of what was said and of its answer. A conversation may begin with the assistant."""
    input_tokens = 0
    for message in conversation.conversations:
        tokens = round(len(message.value) / CHARACTERS_PER_TOKEN)
        if message.sender in {"gpt", "assistant", "chatgpt", "bing", "bard"}:
            if input_tokens and tokens:
                yield input_tokens, tokens
                input_tokens = 0
        else:
            input_tokens += max(tokens, 1)
