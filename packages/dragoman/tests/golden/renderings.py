"""The golden cases: which writers render which events. The exact outputs are in
`cases/`.

`<case>.events.jsonl` is the input, one canonical event per line. `<case>.<writer>.sse`
is the stream and `<case>.<writer>.json` the full response. After an intended change,
`python -m tests.golden.regenerate` shows the differences and writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.core.errors import DragomanError, EngineError
from dragoman.core.event_grammar import EventGrammar
from dragoman.core.events import Event
from dragoman.core.reply import ReplyBuilder
from dragoman.core.server_tools import ServerToolName
from dragoman.dialects.anthropic import MessagesRenderOptions, MessagesWriter
from dragoman.dialects.chat import ChatRenderOptions, ChatWriter
from dragoman.dialects.completions.writer import CompletionsRenderOptions, CompletionsWriter
from dragoman.dialects.gemini import GeminiRenderOptions, GeminiWriter
from dragoman.dialects.interfaces import Header, Profile, Writer
from dragoman.dialects.ollama import OllamaRenderOptions, OllamaTimings, OllamaWriter
from dragoman.dialects.responses import Echo, ResponsesRenderOptions, ResponsesWriter
from dragoman.dialects.responses.tool_registry import ToolName

CASES = Path(__file__).parent / "cases"
_decode = msgspec.json.Decoder(Event).decode

Make = Callable[[], Writer]
VIEW = MessagesRenderOptions(sign=lambda thought: f"signed {len(thought)}")
RESPONSE = ResponsesRenderOptions(now=lambda: 1700000009)
ECHO = Echo(
    rest=b'"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"parallel_tool_calls":true,'
    b'"presence_penalty":0.0,"frequency_penalty":0.0,"prompt_cache_key":null,"reasoning":{"effort":null,"summary":null},'
    b'"safety_identifier":null,"service_tier":"default","temperature":1.0,"text":{"format":{"type":"text"}},'
    b'"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled"'
)


def _name_hosted_tools(**hosted: str) -> dict[str, ServerToolName]:
    """Return hosted tools. hosted: their kinds by name."""
    return {
        name: ServerToolName(
            qualified=name, server="s", name=name, needs_approval=False, hosted=kind
        )
        for name, kind in hosted.items()
    }


def _name_responses_tools(**hosted: str) -> tuple[ToolName, ...]:
    return tuple(
        ToolName(name, name, "", server_tool=tool)
        for name, tool in _name_hosted_tools(**hosted).items()
    )


class Golden(Struct, frozen=True):
    """One case rendered by one writer.

    error: the error that ends the stream; there is no full response then.
    """

    case: str
    writer: str
    make: Make
    error: DragomanError | None = None

    def events(self) -> list[Event]:
        lines = (CASES / f"{self.case}.events.jsonl").read_bytes().splitlines()
        return [_decode(line) for line in lines]

    def files(self) -> Iterator[tuple[Path, bytes]]:
        """Return the expected files and their contents."""
        yield CASES / f"{self.case}.{self.writer}.sse", self._stream()
        if self.error is None:
            folded = ReplyBuilder()
            for event in self.events():
                folded.feed(event)
            yield (
                CASES / f"{self.case}.{self.writer}.json",
                self.make().render_full(folded.build()) + b"\n",
            )

    def _stream(self) -> bytes:
        writer = self.make()
        grammar = EventGrammar()
        sent = b""
        for event in self.events():
            grammar.feed(event)
            sent += writer.feed(event)
        if self.error is not None:
            return sent + writer.render_error(self.error)
        grammar.close()
        return sent + writer.end


def _chat(case: str, *, error: DragomanError | None = None, **view: object) -> Iterator[Golden]:
    for name, profile in (("chat", Profile.OPENAI), ("chat-vllm", Profile.VLLM)):
        options = msgspec.convert({"profile": profile, **view}, ChatRenderOptions)
        yield Golden(
            case,
            name,
            lambda render_options=options: ChatWriter(_header("chatcmpl-1"), render_options),
            error,
        )


def _completions(
    case: str, *, error: DragomanError | None = None, **view: object
) -> Iterator[Golden]:
    for name, profile in (("completions", Profile.OPENAI), ("completions-vllm", Profile.VLLM)):
        options = msgspec.convert({"profile": profile, **view}, CompletionsRenderOptions)
        yield Golden(
            case,
            name,
            lambda render_options=options: CompletionsWriter(_header("cmpl-1"), render_options),
            error,
        )


def _messages(
    case: str, view: MessagesRenderOptions = VIEW, *, error: DragomanError | None = None
) -> Iterator[Golden]:
    yield Golden(case, "messages", lambda: MessagesWriter(_header("msg_1"), view), error)


def _responses(
    case: str,
    view: ResponsesRenderOptions = RESPONSE,
    *,
    writer: str = "responses",
    error: DragomanError | None = None,
) -> Iterator[Golden]:
    yield Golden(case, writer, lambda: ResponsesWriter(_header("resp_1"), view, ECHO), error)


def _ollama(case: str, *, error: DragomanError | None = None, **view: Any) -> Iterator[Golden]:
    for name, is_chat in (("ollama-chat", True), ("ollama-generate", False)):
        options = OllamaRenderOptions(
            "org/model", lambda: 1700000000.5, lambda: TIMINGS, is_chat, **view
        )
        yield Golden(case, name, lambda render_options=options: OllamaWriter(render_options), error)


def _gemini(case: str, *, error: DragomanError | None = None, **view: Any) -> Iterator[Golden]:
    options = GeminiRenderOptions(
        includes_thoughts=True, seal=lambda text, _: f"sealed {len(text)}", **view
    )
    yield Golden(case, "gemini", lambda: GeminiWriter(_header("gemini-1"), options), error)


def _header(id: str) -> Header:
    return Header(id, 1700000000, "org/model", "fp_1")


TIMINGS = OllamaTimings(total=40, load=10, prompt_eval=20, eval=10)
GROUPED = (ToolName("get_weather", "get", "weather"),)
SERVER_TOOLS = {
    f"crm__{name}": ServerToolName(
        qualified=f"crm__{name}", server="crm", name=name, needs_approval=needs_approval
    )
    for name, needs_approval in (("find", False), ("close", True))
}
MCP = tuple(
    ToolName(tool.qualified, tool.name, "", server_tool=tool) for tool in SERVER_TOOLS.values()
)
RESULT_TOOLS = _name_responses_tools(files="file_search", draw="image_generation", run="shell")
FAILURE = EngineError("The engine stopped.")

GOLDEN: tuple[Golden, ...] = (
    *_chat("stop"),
    *_completions("stop"),
    *_messages("stop"),
    *_responses("stop"),
    *_chat("length"),
    *_completions("length"),
    *_messages("length"),
    *_responses("length"),
    *_chat("stop-string"),
    *_completions("stop-string"),
    *_messages("stop-string"),
    *_responses("stop-string"),
    *_chat("stop-token"),
    *_completions("stop-token"),
    *_messages("stop-token"),
    *_chat("empty"),
    *_completions("empty"),
    *_messages("empty"),
    *_responses("empty"),
    *_chat("content-filter"),
    *_completions("content-filter"),
    *_messages("content-filter"),
    *_responses("content-filter"),
    *_chat("abort"),
    *_completions("abort"),
    *_messages("abort"),
    *_responses("abort"),
    *_chat("usage-cache-threshold", include_usage=True),
    *_completions("usage-cache-threshold", include_usage=True),
    *_messages("usage-cache-threshold"),
    *_responses("usage-cache-threshold"),
    *_chat("error", error=FAILURE),
    *_completions("error", error=FAILURE),
    *_messages("error", error=FAILURE),
    *_responses("error", error=FAILURE),
    *_chat("line-ends"),
    *_completions("line-ends"),
    *_messages("line-ends"),
    *_responses("line-ends"),
    *_chat("two-choices"),
    *_completions("two-choices"),
    *_chat("usage", include_usage=True),
    *_completions("usage", include_usage=True),
    *_chat("continuous-usage", include_usage=True, continuous_usage=True),
    *_completions("continuous-usage", include_usage=True, continuous_usage=True),
    *_chat("logprobs", logprobs=2),
    *_completions("logprobs", logprobs=2),
    *_responses("logprobs", ResponsesRenderOptions(logprobs=2)),
    *_chat("token-ids", token_ids=True, tokens_as_ids=True, logprobs=0),
    *_completions("token-ids", token_ids=True, tokens_as_ids=True, logprobs=0),
    *_chat("prompt-logprobs", prompt_logprobs=1, prompt_text=True),
    *_completions("prompt-logprobs", prompt_logprobs=1),
    *_completions("echo", echo=True, logprobs=1),
    *_completions("two-prompts", echo=True),
    *_chat("reasoning"),
    *_messages("reasoning"),
    *_responses("reasoning"),
    *_responses("reasoning", ResponsesRenderOptions(as_summary=True), writer="responses-summary"),
    *_chat("reasoning-hidden", reasoning_fields=(), logprobs=0),
    *_chat("refusal", logprobs=0),
    *_messages("refusal"),
    *_responses("refusal"),
    *_chat("tool-call"),
    *_messages("tool-call"),
    *_responses("tool-call"),
    *_responses(
        "tool-call", ResponsesRenderOptions(tool_names=GROUPED), writer="responses-grouped"
    ),
    *_responses("mcp-calls", ResponsesRenderOptions(tool_names=MCP)),
    *_responses("mcp-approval", ResponsesRenderOptions(tool_names=MCP)),
    *_responses("mcp-cut-off", ResponsesRenderOptions(tool_names=MCP)),
    *_responses("mcp-list-failed", ResponsesRenderOptions(tool_names=MCP)),
    *_messages("mcp-calls", MessagesRenderOptions(server_tools=SERVER_TOOLS)),
    *_messages("mcp-cut-off", MessagesRenderOptions(server_tools=SERVER_TOOLS)),
    *_messages(
        "hosted-calls",
        MessagesRenderOptions(
            server_tools=_name_hosted_tools(search="web_search", run="code_execution")
        ),
    ),
    *_responses(
        "hosted-calls",
        ResponsesRenderOptions(
            tool_names=_name_responses_tools(search="web_search", run="code_interpreter"),
            include_sources=True,
            include_code_outputs=True,
        ),
    ),
    *_responses(
        "hosted-results",
        ResponsesRenderOptions(
            tool_names=RESULT_TOOLS, include_file_results=True, partial_images=1
        ),
    ),
    *_responses("hosted-cut-off", ResponsesRenderOptions(tool_names=RESULT_TOOLS)),
    *_chat("parallel-calls"),
    *_messages("parallel-calls"),
    *_responses("parallel-calls"),
    *_chat("text-then-call"),
    *_messages("text-then-call"),
    *_responses("text-then-call"),
    *_chat("custom-call"),
    *_responses("custom-call"),
    *_chat("named-call", is_named_choice=True),
    *_chat("legacy-call", legacy_functions=True),
    *_chat("call-cut-off"),
    *_messages("call-cut-off"),
    *_responses("call-cut-off"),
    *_chat("service-tier", service_tier=True),
    *_messages(
        "thought-omitted",
        MessagesRenderOptions(omit_thinking=True, sign=lambda thought: f"signed {len(thought)}"),
    ),
    *_chat("context-full"),
    *_completions("context-full"),
    *_messages("context-full"),
    *_responses("context-full"),
    *_messages("call-no-json"),
    *_chat("kv-transfer"),
    *_completions("kv-transfer"),
    *_messages("kv-transfer"),
    *_responses("kv-transfer"),
    *_messages("thought-call-text"),
    *_responses("thought-call-text"),
    *_ollama("stop"),
    *_ollama("length"),
    *_ollama("context-full"),
    *_ollama("stop-string"),
    *_ollama("empty"),
    *_ollama("content-filter"),
    *_ollama("abort"),
    *_ollama("error", error=FAILURE),
    *_ollama("line-ends"),
    *_ollama("logprobs", logprobs=2),
    *_ollama("echo", returns_context=True),
    *_ollama("reasoning"),
    *_ollama("refusal"),
    *_ollama("tool-call"),
    *_ollama("parallel-calls"),
    *_ollama("text-then-call"),
    *_ollama("call-cut-off"),
    *_ollama("call-no-json"),
    *_ollama("thought-call-text"),
    *_gemini("stop"),
    *_gemini("length"),
    *_gemini("context-full"),
    *_gemini("stop-string"),
    *_gemini("empty"),
    *_gemini("content-filter"),
    *_gemini("abort"),
    *_gemini("error", error=FAILURE),
    *_gemini("line-ends"),
    *_gemini("logprobs", logprobs=2),
    *_gemini("two-choices"),
    *_gemini("reasoning"),
    *_gemini("refusal"),
    *_gemini("tool-call"),
    *_gemini("parallel-calls"),
    *_gemini("text-then-call"),
    *_gemini("call-cut-off"),
    *_gemini("call-no-json"),
    *_gemini("thought-call-text"),
)
