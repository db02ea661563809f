"""Sources of workloads: public traces and data sets, logs of benchmark tools, and
generated requests.

Every reader returns the requests, and notes for the user about what the file does not
contain.

- Azure LLM inference traces (github.com/Azure/AzurePublicDataset): CSV of TIMESTAMP,
  ContextTokens, GeneratedTokens.
- BurstGPT (github.com/HPMLL/BurstGPT): CSV of Timestamp (seconds), Request tokens and
  Response tokens (0 for a failed request).
- ShareGPT: JSON list of conversations with texts, but without times and token counts.
- Logs of benchmark tools: see `logs`.

Generators make Poisson arrivals, bursts, and conversations with shared prefixes. All
randomness comes from the caller's `Generator`: the same state gives the same workload.
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

from .logs.log import LogError
from .logs.tools import read_any
from .workload import RequestTable, WorkloadError, WorkloadRequest, check_workload, read_workload

Generator = np.random.Generator


class FixedLength(Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """A constant number of tokens."""

    tokens: int

    def sample(self, _: Generator) -> int:
        return max(1, self.tokens)


class UniformLength(Struct, frozen=True, tag="uniform", forbid_unknown_fields=True):
    """A uniform distribution from `low` to `high` tokens, inclusive."""

    low: int
    high: int

    def sample(self, generator: Generator) -> int:
        return max(1, int(generator.integers(self.low, self.high, endpoint=True)))


class LogNormalLength(Struct, frozen=True, tag="lognormal", forbid_unknown_fields=True):
    """A log-normal distribution, capped.

    median, maximum: tokens.
    sigma: standard deviation of the logarithm.
    """

    median: float
    sigma: float
    maximum: int

    def sample(self, generator: Generator) -> int:
        length = self.median * float(np.exp(generator.normal(0.0, self.sigma)))
        return min(max(1, round(length)), self.maximum)


RequestLengths = FixedLength | UniformLength | LogNormalLength


def parse_lengths(text: str) -> RequestLengths:
    """Parse `512`, `100-900` or `lognormal:400,0.8,8192` (median, sigma, maximum).
    Raises ValueError.
    """
    name, _, numbers = text.partition(":")
    try:
        if name == "lognormal" and numbers:
            median, sigma, maximum = numbers.split(",")
            return _check_lengths(LogNormalLength(float(median), float(sigma), int(maximum)), text)
        low, is_range, high = text.partition("-")
        return _check_lengths(
            UniformLength(int(low), int(high)) if is_range else FixedLength(int(text)), text
        )
    except ValueError:
        raise ValueError(
            f"{text!r} is not a length: use 512, 100-900 or lognormal:MEDIAN,SIGMA,MAXIMUM"
        ) from None


def _check_lengths(lengths: RequestLengths, text: str) -> RequestLengths:
    match lengths:
        case FixedLength(tokens):
            is_valid = tokens >= 1
        case UniformLength(low, high):
            is_valid = 1 <= low <= high
        case LogNormalLength(median, sigma, maximum):
            is_valid = 0 < median < float("inf") and 0 <= sigma < 20 and maximum >= 1
    if not is_valid:
        raise ValueError(text)
    return lengths


def generate_arrivals(
    generator: Generator, *, rate: float, burstiness: float = 1.0
) -> Iterator[float]:
    """Yield arrival times in seconds, starting at 0, without end.

    rate: mean arrivals per second.
    burstiness: shape of the gamma distribution of the gaps, as in `vllm bench serve`: 1
        is a Poisson process, less is burstier, more is more regular, infinity is
        constant.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError("rate and burstiness must be more than 0")
    now = 0.0
    while True:
        yield now
        is_constant = np.isinf(burstiness)
        # The mean gap is shape times scale: 1 / rate for any burstiness.
        now += (
            1 / rate if is_constant else float(generator.gamma(burstiness, 1 / (rate * burstiness)))
        )


def generate_poisson(
    generator: Generator,
    *,
    count: int,
    rate: float,
    inputs: RequestLengths,
    outputs: RequestLengths,
    burstiness: float = 1.0,
) -> RequestTable:
    """Generate `count` independent requests, `rate` per second on average."""
    times = generate_arrivals(generator, rate=rate, burstiness=burstiness)
    return RequestTable.build(
        "r",
        (
            (index, next(times), inputs.sample(generator), outputs.sample(generator))
            for index in range(count)
        ),
    )


def generate_bursts(
    generator: Generator,
    *,
    count: int,
    size: int,
    interval: float,
    inputs: RequestLengths,
    outputs: RequestLengths,
) -> RequestTable:
    """Generate `size` simultaneous requests every `interval` seconds."""
    if size < 1 or not interval > 0:
        raise ValueError("size must be at least 1, and interval more than 0 seconds")
    return RequestTable.build(
        "r",
        (
            (index, index // size * interval, inputs.sample(generator), outputs.sample(generator))
            for index in range(count)
        ),
    )


class SessionOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of sessions (multi-turn conversations).

    turns: turns per session.
    inputs: tokens that a turn adds to the conversation.
    outputs: tokens of each response.
    think_seconds: mean pause before the next turn, exponentially distributed.
    system_tokens: tokens of the system prompt, with which each session starts.
    groups: number of different system prompts; the sessions of a group share one.
    block_size: tokens per block of the prefix hashes.
    """

    turns: RequestLengths
    inputs: RequestLengths
    outputs: RequestLengths
    think_seconds: float = 5.0
    system_tokens: int = 0
    groups: int = 1
    block_size: int = 16


def generate_sessions(
    generator: Generator, *, count: int, rate: float, options: SessionOptions
) -> list[WorkloadRequest]:
    """Generate `count` sessions, `rate` per second. Each turn waits for the response to
    the previous one.
    """
    times = generate_arrivals(generator, rate=rate)
    requests: list[WorkloadRequest] = []
    for session in range(count):
        begins = next(times)
        group = int(generator.integers(options.groups))
        total_tokens = options.system_tokens
        size = options.block_size
        previous_id: str | None = None
        for turn in range(options.turns.sample(generator)):
            inputs = total_tokens + options.inputs.sample(generator)
            outputs = options.outputs.sample(generator)
            total_tokens = inputs + outputs
            pause = float(generator.exponential(options.think_seconds)) if previous_id else begins
            id = f"s{session}-t{turn}"
            # The group shares the full blocks of the system prompt.
            num_shared = options.system_tokens // size
            hashes = tuple(
                f"g{group}/{block}" if block < num_shared else f"s{session}/{block}"
                for block in range(total_tokens // size)
            )
            requests.append(
                WorkloadRequest(id, pause, inputs, outputs, hashes, size, after=previous_id)
            )
            previous_id = id
    return requests


CHARACTERS_PER_TOKEN = 4.0
"""Typical for English text and a vocabulary of at least 100,000 tokens."""
_BLOCK = 16
# A fraction of a second with more than six digits.
_FRACTION = re.compile(r"\.(\d{6})\d+")
_ASSISTANTS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})


class TraceOptions(Struct, frozen=True):
    """Arrival times for a data set without times.

    rate: conversations that begin per second, as a Poisson process.
    think_seconds: mean pause between turns.
    max_requests: maximum number of requests; None means all.
    """

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
    """Read a trace; the format is detected from the content. Raises WorkloadError or
    LogError.
    """
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


def _read_rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV with their line numbers; column names are lower-cased."""
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
    try:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            yield (
                number,
                {
                    (name or "").strip().lower(): (value or "").strip()
                    for name, value in row.items()
                },
            )
    except UnicodeError:
        raise WorkloadError("the file is not UTF-8 text") from None


def _parse_azure(data: bytes) -> Iterator[tuple[int, float, int, int]]:
    begin: float | None = None
    for number, row in _read_rows(data):
        try:
            # Azure writes seven digits of a second; Python parses at most six.
            at = datetime.fromisoformat(_FRACTION.sub(r".\1", row["timestamp"])).timestamp()
            inputs = int(row["contexttokens"])
            outputs = int(row["generatedtokens"])
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
                inputs = int(float(row["request tokens"]))
                outputs = int(float(row["response tokens"]))
            except (KeyError, ValueError, OverflowError):
                raise WorkloadError(
                    f"line {number}: a BurstGPT trace has Timestamp, Request tokens, Response "
                    f"tokens"
                ) from None
            if inputs < 1 or outputs < 1:
                failed += 1
                continue
            begin = at if begin is None else begin
            yield number, at - begin, inputs, outputs

    requests = RequestTable.build("line", parse()).sort()
    return Trace(
        requests, (f"{failed} failed requests without tokens are skipped",) if failed else ()
    )


def _read_sharegpt(data: bytes, options: TraceOptions, generator: np.random.Generator) -> Trace:
    """Read conversations: each turn waits for the previous response, and its prompt
    contains all previous messages.
    """
    try:
        conversations = msgspec.json.decode(data, type=list[_Conversation])
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"ShareGPT: {error}") from None
    times = generate_arrivals(generator, rate=options.rate)
    requests: list[WorkloadRequest] = []
    for index, conversation in enumerate(conversations):
        turns: list[tuple[int, int]] = []
        """New prompt tokens and response tokens of each turn. A conversation may begin
        with the assistant.
        """
        prompt_tokens = 0
        for message in conversation.conversations:
            tokens = round(len(message.value) / CHARACTERS_PER_TOKEN)
            if message.sender not in _ASSISTANTS:
                prompt_tokens += max(tokens, 1)
            elif prompt_tokens and tokens:
                turns.append((prompt_tokens, tokens))
                prompt_tokens = 0
        if not turns or (
            options.max_requests is not None and len(requests) >= options.max_requests
        ):
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
            f"ShareGPT has no times: {options.rate:g} conversations a second, and "
            f"{options.think_seconds:g} seconds "
            "between turns (--request-rate, --think-time)",
            f"the first {len(selected)} requests of the file (--num-prompts)",
            f"ShareGPT has texts: one token is taken as {CHARACTERS_PER_TOKEN:g} characters",
        ),
    )
