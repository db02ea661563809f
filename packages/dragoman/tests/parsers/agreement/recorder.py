"""Parse every case with vLLM's own parsers and record the results.

    python -m tests.parsers.agreement.recorder

Needs vLLM 0.33, transformers and ijson (`requirements/vllm.txt`), but no accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from msgspec.structs import replace
from tests.engines.vllm.serving import without_accelerator

from dragoman.parsers import registry

from .cases import Case, Reading, load_cases, save_cases, split_tokens


@cache
def build_tokenizer(marks: tuple[str, ...]) -> Any:
    """Build a vocabulary of bytes and these markers."""
    tokenizers = import_module("tokenizers")
    transformers = import_module("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({char: n for n, char in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in marks])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>"
    )


def _request(case: Case) -> Any:
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "parameters": tool.parameters or {"type": "object"}},
        }
        for tool in case.tools
    ]
    return protocol.ChatCompletionRequest(messages=[], model="m", tools=tools or None)


def record_tools(case: Case) -> Case:
    parser_type = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(case.family)
    request = _request(case)
    with _as_error() as error:
        found = parser_type(build_tokenizer(case.marks), request.tools).extract_tool_calls(
            case.text, request
        )
        calls = tuple((call.function.name, call.function.arguments) for call in found.tool_calls)
        whole = Reading(found.content or "", calls)
    return _with(
        case,
        whole if not error else Reading(error=error[0]),
        _stream_tools(parser_type, request, case),
    )


def _stream_tools(parser_type: Any, request: Any, case: Case) -> Reading:
    with _as_error() as error:
        parser = parser_type(build_tokenizer(case.marks), request.tools)
        text = ""
        calls = dict[int, list[str]]()
        for delta in _deltas(parser, parser.extract_tool_calls_streaming, case, request):
            text += delta.content or ""
            for call in delta.tool_calls or ():
                name, arguments = calls.get(call.index, ["", ""])
                function = call.function
                calls[call.index] = [
                    name + (function.name or ""),
                    arguments + (function.arguments or ""),
                ]
        return Reading(text, tuple((name, arguments) for name, arguments in calls.values()))
    return Reading(error=error[0])


def record_reasoning(case: Case) -> Case:
    parser_type = import_module("vllm.reasoning").ReasoningParserManager.get_reasoning_parser(
        case.family
    )
    request = _request(case)

    def build() -> Any:
        return parser_type(build_tokenizer(case.marks), chat_template_kwargs=case.template)

    # A parser assumes that the template opened the reasoning, or may read reasoning
    # that only ends.
    begin, end = _find_reasoning_marks(case.family)
    ends_alone = end in case.text and begin not in case.text.partition(end)[0]
    reasoning, content = build().extract_reasoning(
        f"Plain{end}" if ends_alone else "Plain", request
    )
    opened = bool(reasoning) or (content or "").startswith(begin)
    case = replace(case, opened=opened)
    with _as_error() as error:
        reasoning, content = build().extract_reasoning(case.text, request)
        whole = Reading(content or "", reasoning=reasoning or "")
    with _as_error() as stream_error:
        parser = build()
        deltas = list(_deltas(parser, parser.extract_reasoning_streaming, case))
        text = "".join(delta.content or "" for delta in deltas)
        streamed = Reading(text, reasoning="".join(delta.reasoning or "" for delta in deltas))
    return _with(
        case,
        whole if not error else Reading(error=error[0]),
        streamed if not stream_error else Reading(error=stream_error[0]),
    )


def _find_reasoning_marks(family: str) -> tuple[str, str]:
    found = registry.find_reasoning_format(family)
    assert found is not None
    return found.syntax.begin, found.syntax.end


def _deltas(parser: Any, extract: Any, case: Case, *more: Any) -> Iterator[Any]:
    """Yield the messages of a parser that is fed token by token."""
    before = ""
    ids = list[int]()
    tokenizer = build_tokenizer(case.marks)
    for piece in split_tokens(case.text):
        new = tokenizer.encode(piece, add_special_tokens=False)
        delta = extract(before, before + piece, piece, ids, ids + new, new, *more)
        before = before + piece
        ids = ids + new
        if delta is not None:
            yield delta
    rest = parser.finish_streaming() if hasattr(parser, "finish_streaming") else None
    if rest is not None:
        yield rest


@contextmanager
def _as_error() -> Generator[list[str]]:
    """Return the name of the exception as the result of a parser that failed."""
    error: list[str] = []
    try:
        yield error
    except Exception as failure:
        error.append(type(failure).__name__)


def _with(case: Case, whole: Reading, streamed: Reading) -> Case:
    return replace(
        case, whole=whole, streamed=streamed if streamed.meaning != whole.meaning else None
    )


RECORDERS = {"tools": record_tools, "reasoning": record_reasoning}


def main() -> int:
    with without_accelerator():
        for kind, record in RECORDERS.items():
            save_cases(kind, [record(case) for case in load_cases(kind)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
