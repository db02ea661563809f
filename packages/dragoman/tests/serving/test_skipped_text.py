"""Text that a parser skips in a call is reported to the client."""

from __future__ import annotations

import json

import pytest

from dragoman.engines.scripted import Say, Script, ScriptedEngine
from dragoman.parsers import registry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.output_formats import OutputFormats
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app

from .harness import FixedClock, SequentialIds, ServerHarness, load_tiny_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
CALL = (
    "<tool_call>\n<function=read>\n<parameter=path>\n/a\n</parameter>\n{}</function>\n</tool_call>"
)
WARNING = "tools: text between the arguments of a call of 'read' is skipped: '</parameter>'"


def build_parsing_server(text: str) -> ServerHarness:
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(Script.of(Say(text)), tokenizer=tokenizer, native=False)
    formats = OutputFormats(tools=registry.find_tool_format("qwen3_coder"))
    backend = EventBackend(engine, tokenizer)
    model = ServedModel("m", backend, 4096, 1_700_000_000, formats=formats)
    app = build_asgi_app(Models([model]), clock=FixedClock(), ids=SequentialIds())
    return ServerHarness(app, engine)


@pytest.mark.parametrize("stream", [False, True])
async def test_skipped_text_is_reported_to_client(stream: bool):
    server = build_parsing_server(CALL.format("</parameter>\n"))
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": stream}
    answer = await server.post("/v1/chat/completions", body)
    if stream:
        assert f": dragoman_warnings {json.dumps([WARNING])}\n\n" in answer.text
    else:
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"path": "/a"}'
        assert answer.headers["x-dragoman-warnings"] == WARNING


@pytest.mark.parametrize("stream", [False, True])
async def test_call_without_slip_has_no_warning(stream: bool):
    server = build_parsing_server(CALL.format(""))
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": stream}
    answer = await server.post("/v1/chat/completions", body)
    assert "dragoman_warnings" not in answer.text
    assert "x-dragoman-warnings" not in answer.headers
    assert '"read"' in answer.text
