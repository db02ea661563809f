"""ShareGPT: JSON list of conversations with texts, but without times and token
counts.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import Struct

from .arrivals import generate_arrivals
from .trace_file import check_workload
from .trace_options import Trace, TraceOptions
from .workload import WorkloadError, WorkloadRequest

CHARACTERS_PER_TOKEN = 4.0
"""Typical for English text and a vocabulary of at least 100,000 tokens."""
_BLOCK = 16
_ASSISTANTS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})


class _Message(Struct):
    sender: str = msgspec.field(name="from")
    value: str = ""


class _Conversation(Struct):
    id: str = ""
    conversations: list[_Message] = []


def read_sharegpt(data: bytes, options: TraceOptions, generator: np.random.Generator) -> Trace:
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
