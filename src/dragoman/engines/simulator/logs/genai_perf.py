"""GenAI-Perf's profile export (0.0.8 and later: `--profile-export-file my.json`, streamed chat or completions). Pure.

{"experiments": [{"requests": [{"timestamp": NS, "response_timestamps": [NS, ...], "response_outputs":
[{"response": "data: {...}"}, ...]}]}]}. It has texts but no counts: they come from the server's usage, for which the
run needs `--extra-inputs stream_options:'{"include_usage":true}'`.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import Log, LogError, log_of

FORMAT = "genai-perf"


class _Output(Struct):
    response: str = ""


class _Request(Struct):
    timestamp: int
    response_timestamps: list[int] = []
    response_outputs: list[_Output] = []


class _Experiment(Struct):
    requests: list[_Request]


class _File(Struct):
    experiments: list[_Experiment]


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None

    @property
    def says(self) -> bool:
        """Whether a token came with it: the first chunk has a role only, the last a reason."""
        told = self.delta or _Delta()
        return bool(self.text or told.content or told.reasoning_content or told.reasoning or told.tool_calls)


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def is_one(data: bytes) -> bool:
    return b'"experiments"' in data and b'"response_timestamps"' in data


def read(data: bytes) -> Log:
    """Raises LogError."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise LogError(f"{FORMAT}: {error}") from None
    if len(file.experiments) != 1:
        raise LogError(f"{FORMAT}: {len(file.experiments)} experiments in one file; one is wanted")
    requests = file.experiments[0].requests
    timings = [found for index, request in enumerate(requests) if (found := _timing(index, request)) is not None]
    return log_of(FORMAT, timings, skipped=len(requests) - len(timings))


def _timing(index: int, request: _Request) -> Timing | None:
    tokens: list[float] = []
    usage: _Usage | None = None
    for at, output in zip(request.response_timestamps, request.response_outputs, strict=False):
        for chunk in _chunks(output.response):
            usage = chunk.usage or usage
            if any(choice.says for choice in chunk.choices):
                tokens.append(at / 1e9)
    if not tokens:
        return None
    if usage is None:
        raise LogError(
            f"{FORMAT}: request {index}: its answer has no usage, so its tokens cannot be counted; "
            """run it with --extra-inputs stream_options:'{"include_usage":true}'"""
        )
    at = request.timestamp / 1e9
    return Timing(f"r{index}", at, tokens[0], tokens[-1], usage.prompt_tokens, usage.completion_tokens)


def _chunks(response: str) -> list[_Chunk]:
    found: list[_Chunk] = []
    for line in response.splitlines():
        text = line.removeprefix("data:").strip()
        if text.startswith("{"):
            try:
                found.append(_CHUNK.decode(text))
            except msgspec.MsgspecError as error:
                raise LogError(f"{FORMAT}: a response is no chunk of a chat or a completion: {error}") from None
    return found
