"""The OpenAPI document: the output of every writer for any answer, streamed or full,
matches it.
"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.described import find_errors, find_operation, find_value_schema, read_values

from dragoman.dialects.anthropic import MessagesRenderOptions, MessagesWriter
from dragoman.dialects.chat import ChatRenderOptions, ChatWriter
from dragoman.dialects.completions.writer import CompletionsRenderOptions, CompletionsWriter
from dragoman.dialects.gemini import GeminiRenderOptions, GeminiWriter
from dragoman.dialects.interfaces import Header, Writer
from dragoman.dialects.ollama import OllamaRenderOptions, OllamaWriter
from dragoman.dialects.responses import ResponsesRenderOptions, ResponsesWriter
from dragoman.dialects.sglang.writer import SglangRenderOptions, SglangWriter
from dragoman.dialects.tgi import TgiRenderOptions, TgiWriter
from dragoman.dialects.vllm_generate.writer import GenerateRenderOptions, GenerateWriter

from . import (
    test_anthropic,
    test_chat,
    test_completions,
    test_gemini,
    test_ollama,
    test_responses,
    test_sglang,
    test_tgi,
)
from .sdk import write_stream
from .strategies import Case, Kinds, cases

HEADER = Header("id-1", 1700000000, "org/model", "fp_1")


def check(path: str, case: Case, stream: Writer | None, full: Writer | None) -> None:
    """Check the outputs of two writers of the same kind, each for one answer. None: the
    path has no such form.
    """
    operation = find_operation("POST", path)
    assert operation is not None
    content = operation["responses"]["200"]["content"]
    media = "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
    values = (
        []
        if stream is None
        else [(media, value) for value in read_values(media, write_stream(stream, case.events))]
    )
    if full is not None:
        kind = "application/json"
        values += [(kind, value) for value in read_values(kind, full.render_full(case.reply))]
    for kind, value in values:
        assert find_errors(find_value_schema(content, kind), value) == [], value


@given(cases(), test_chat.views)
def test_openapi_describes_chat_completions(case: Case, view: ChatRenderOptions) -> None:
    check("/v1/chat/completions", case, ChatWriter(HEADER, view), ChatWriter(HEADER, view))


@given(cases(test_completions.MANY), test_completions.views)
def test_openapi_describes_completions(case: Case, view: CompletionsRenderOptions) -> None:
    check("/v1/completions", case, CompletionsWriter(HEADER, view), CompletionsWriter(HEADER, view))


@given(test_anthropic.one_answer, test_anthropic.views)
def test_openapi_describes_messages(case: Case, view: MessagesRenderOptions) -> None:
    check("/v1/messages", case, MessagesWriter(HEADER, view), MessagesWriter(HEADER, view))


@given(test_anthropic.mcp_answer)
def test_openapi_describes_mcp_tools_of_messages(case: Case) -> None:
    view = test_anthropic.mcp_view
    check("/v1/messages", case, MessagesWriter(HEADER, view), MessagesWriter(HEADER, view))


@given(test_responses.one_answer, test_responses.views)
def test_openapi_describes_responses(case: Case, view: ResponsesRenderOptions) -> None:
    writers = [ResponsesWriter(HEADER, view, test_responses.ECHO) for _ in range(2)]
    check("/v1/responses", case, *writers)


@given(test_responses.mcp_answer, test_responses.mcp_views)
def test_openapi_describes_mcp_tools_of_responses(case: Case, view: ResponsesRenderOptions) -> None:
    writers = [ResponsesWriter(HEADER, view, test_responses.ECHO) for _ in range(2)]
    check("/v1/responses", case, *writers)


@given(cases(test_ollama.ONE), test_ollama.views)
def test_openapi_describes_ollama_responses(case: Case, view: OllamaRenderOptions) -> None:
    # Only /api/generate returns a context.
    view = msgspec.structs.replace(view, returns_context=view.returns_context and not view.is_chat)
    check(
        "/api/chat" if view.is_chat else "/api/generate",
        case,
        OllamaWriter(view),
        OllamaWriter(view),
    )


@given(cases(test_gemini.MANY), test_gemini.views)
def test_openapi_describes_gemini_responses(case: Case, view: GeminiRenderOptions) -> None:
    path = "/v1beta/models/{model}:"
    check(path + "generateContent", case, None, GeminiWriter(HEADER, view))
    check(path + "streamGenerateContent", case, GeminiWriter(HEADER, view), None)


@given(cases(test_sglang.MANY), test_sglang.views)
def test_openapi_describes_sglang_responses(case: Case, view: SglangRenderOptions) -> None:
    check("/generate", case, SglangWriter(HEADER, view), SglangWriter(HEADER, view))


@given(cases(test_tgi.ONE), test_tgi.views)
def test_openapi_describes_tgi_responses(case: Case, view: TgiRenderOptions) -> None:
    check("/generate_stream", case, TgiWriter(view), None)
    check("/generate", case, None, TgiWriter(view))


@given(cases(Kinds(max_choices=2)), st.sampled_from((None, 0, 2)), st.booleans())
def test_openapi_describes_generate_responses(
    case: Case, logprobs: int | None, include_usage: bool
) -> None:
    view = GenerateRenderOptions(
        logprobs=logprobs, prompt_logprobs=logprobs, include_usage=include_usage
    )
    check(
        "/inference/v1/generate", case, GenerateWriter(HEADER, view), GenerateWriter(HEADER, view)
    )
