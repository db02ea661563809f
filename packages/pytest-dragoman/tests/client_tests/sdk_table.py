"""Prints the table of docs/client-tests.md: what the vendors' SDKs do under each fault.

PYTHONPATH=packages/pytest-dragoman python -m tests.client_tests.sdk_table
"""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import anthropic
import ollama  # pyright: ignore[reportMissingImports] - a client of its own environment
import openai
from google import genai  # pyright: ignore[reportAttributeAccessIssue] - as above

from pytest_dragoman import Dragoman
from pytest_dragoman.event_loop_thread import EventLoopThread
from pytest_dragoman.faults import Fault, build_faults

TEXT = "one two three four five"
ARGUMENTS = {"a": 1}
QUESTION: Any = [{"role": "user", "content": "Count"}]
PARAMETERS: Any = {"type": "object"}
TIMEOUT = 1.0
"""Seconds; below the pause of the fault `stall`."""


def read_chat(url: str) -> tuple[str, str, int]:
    """Read a stream of Chat Completions with `stream()`; return the text, the arguments
    and the tokens.
    """
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
    with client.chat.completions.stream(
        model="m", messages=QUESTION, tools=[tool], stream_options={"include_usage": True}
    ) as stream:
        completion: Any = stream.get_final_completion()
    message = completion.choices[0].message
    calls = message.tool_calls or ()
    tokens = completion.usage.completion_tokens if completion.usage else 0
    return message.content, "".join(call.function.arguments for call in calls), tokens


def read_chat_chunks(url: str) -> tuple[str, str, int]:
    """Read the same with `create(stream=True)`, and add up its chunks."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
    chunks: Any = client.chat.completions.create(
        model="m",
        messages=QUESTION,
        tools=[tool],
        stream=True,
        stream_options={"include_usage": True},
    )
    text = arguments = ""
    tokens = 0
    for chunk in chunks:
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                arguments += call.function.arguments
    return text, arguments, tokens


def read_response(url: str) -> tuple[str, str, int]:
    """Read a stream of Responses with `stream()`."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT)
    tool: Any = {"type": "function", "name": "add", "parameters": PARAMETERS}
    with client.responses.stream(model="m", input="Count", tools=[tool]) as stream:
        response: Any = stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    arguments = "".join(call.arguments for call in calls)
    return response.output_text, arguments, response.usage.output_tokens


def read_message(url: str) -> tuple[str, str, int]:
    """Read a stream of Messages with `stream()`."""
    client = anthropic.Anthropic(base_url=url, api_key="none", timeout=TIMEOUT)
    tool: Any = {"name": "add", "input_schema": PARAMETERS}
    with client.messages.stream(
        model="m", max_tokens=99, messages=QUESTION, tools=[tool]
    ) as stream:
        message: Any = stream.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [block.input for block in message.content if block.type == "tool_use"]
    return text, "".join(map(json.dumps, calls)), message.usage.output_tokens


def read_gemini(url: str) -> tuple[str, str, int]:
    """Read a stream of Gemini's API with `generate_content_stream`."""
    options: Any = {"base_url": url, "timeout": int(TIMEOUT * 1000)}
    client: Any = genai.Client(api_key="none", http_options=options)
    declaration = {"name": "add", "parameters": {"type": "OBJECT"}}
    text = ""
    calls: list[Any] = []
    tokens = 0
    for chunk in client.models.generate_content_stream(
        model="m",
        contents="Count",
        config={
            "tools": [{"function_declarations": [declaration]}],
            "automatic_function_calling": {"disable": True},
        },
    ):
        for part in chunk.parts or ():
            text += part.text or ""
            calls += [part.function_call.args] if part.function_call else []
        if chunk.usage_metadata and chunk.usage_metadata.candidates_token_count:
            tokens = chunk.usage_metadata.candidates_token_count
    return text, "".join(map(json.dumps, calls)), tokens


def read_ollama(url: str) -> tuple[str, str, int]:
    """Read a stream of Ollama's API with `chat(stream=True)`."""
    client: Any = ollama.Client(host=url, timeout=TIMEOUT)
    tool = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
    text = ""
    calls: list[Any] = []
    tokens = 0
    for chunk in client.chat(model="m", messages=QUESTION, tools=[tool], stream=True):
        text += chunk.message.content or ""
        calls += [call.function.arguments for call in chunk.message.tool_calls or ()]
        tokens = chunk.eval_count or tokens
    return text, "".join(json.dumps(dict(call)) for call in calls), tokens


SDKS: Mapping[str, Callable[[str], tuple[str, str, int]]] = {
    "`openai`, Chat, `stream()`": read_chat,
    "`openai`, Chat, `create(stream=True)`": read_chat_chunks,
    "`openai`, Responses, `stream()`": read_response,
    "`anthropic`, Messages, `stream()`": read_message,
    "`google-genai`, `generate_content_stream()`": read_gemini,
    "`ollama`, `chat(stream=True)`": read_ollama,
}


def judge(read: Callable[[str], tuple[str, str, int]], fault: Fault, loop: EventLoopThread) -> str:
    """Run a client under a fault; return what it did."""
    server = Dragoman(loop, fault)
    server.reply(TEXT).tool_call("add", ARGUMENTS)
    error: Exception | None = None
    try:
        text, arguments, tokens = read(server.base_url)
        assert text == TEXT, f"the text is {text!r}"
        assert arguments, "the tool call is missing"
        assert json.loads(arguments) == ARGUMENTS, f"the arguments are {arguments!r}"
        server.assert_usage(completion=tokens)
    except Exception as raised:  # whatever the SDK raises
        error = raised
    findings = server.judge(error)
    server.close()
    if findings:
        return "; ".join(f"**{finding.mistake}**" for finding in findings)
    return server.describe(findings, error)


def main() -> None:
    loop = EventLoopThread()
    packages = ("openai", "anthropic", "google-genai", "ollama")
    print(", ".join(f"{package} {version(package)}" for package in packages) + "\n")
    print(f"| fault | {' | '.join(SDKS)} |")
    print("| --- |" + " --- |" * len(SDKS))
    for fault in build_faults().values():
        cells = [judge(read, fault, loop) for read in SDKS.values()]
        print(f"| `{fault.name}` | {' | '.join(cells)} |", flush=True)
    loop.close()


if __name__ == "__main__":
    main()
