"""The fixture: replies in every API, and what the client sent."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from pytest_dragoman import Dragoman, SimulatedServer
from pytest_dragoman.sent_request import Ending

HELLO: Any = [{"role": "user", "content": "Hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def build_openai(dragoman: Dragoman | SimulatedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=dragoman.openai_base_url, api_key="key", max_retries=0)


def build_anthropic(dragoman: Dragoman) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=dragoman.base_url, api_key="key", max_retries=0)


def post(dragoman: Dragoman, path: str, body: object) -> bytes:
    request = urllib.request.Request(
        f"{dragoman.base_url}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def ask_chat(dragoman: Dragoman, **options: Any) -> str:
    client = build_openai(dragoman)
    stream: Any = client.chat.completions.create(
        model="gpt-5", messages=HELLO, stream=True, **options
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_reply_is_same_in_every_api(dragoman: Dragoman) -> None:
    dragoman.reply("Good day").times(6)
    client = build_openai(dragoman)
    chat = client.chat.completions.create(model="gpt-5", messages=HELLO)
    message = build_anthropic(dragoman).messages.create(
        model="claude-opus-5", max_tokens=99, messages=HELLO
    )
    texts = [
        chat.choices[0].message.content,
        client.completions.create(model="gpt-5", prompt="Hello").choices[0].text,
        client.responses.create(model="gpt-5", input="Hello").output_text,
        message.content[0].text if message.content[0].type == "text" else None,
    ]
    ollama = post(dragoman, "/api/chat", {"model": "llama3", "messages": HELLO, "stream": False})
    texts.append(json.loads(ollama)["message"]["content"])
    gemini = post(
        dragoman,
        "/v1beta/models/gemini-3:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    )
    texts.append(json.loads(gemini)["candidates"][0]["content"]["parts"][0]["text"])
    assert texts == ["Good day"] * 6
    assert [request.text for request in dragoman.requests] == ["Hello"] * 6
    assert {request.ending for request in dragoman.requests} == {Ending.COMPLETE}
    dragoman.assert_resilient()


def test_parts_of_reply_are_sent_in_order(dragoman: Dragoman) -> None:
    dragoman.reasoning("Two numbers.").reply("Let me see.").tool_call("add", {"a": 1})
    message: Any = (
        build_openai(dragoman)
        .chat.completions.create(model="gpt-5", messages=HELLO, tools=TOOLS)
        .choices[0]
        .message
    )
    assert message.reasoning_content == "Two numbers."
    assert message.content == "Let me see."
    assert message.tool_calls[0].function.arguments == '{"a": 1}'
    assert dragoman.requests[0].tool_calls[0].name == "add"


def test_requests_are_typed(dragoman: Dragoman) -> None:
    dragoman.tool_call("add", {"a": 1}, id="call_a")
    dragoman.reply("Done.")
    client = build_anthropic(dragoman)
    tools: Any = [{"name": "add", "input_schema": {"type": "object"}}]
    messages: Any = list(HELLO)
    reply = client.messages.create(
        model="claude-opus-5", system="Be brief.", max_tokens=99, messages=messages, tools=tools
    )
    result = {"type": "tool_result", "tool_use_id": reply.content[0].id, "content": "3"}  # type: ignore[union-attr]
    messages += [
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(model="claude-opus-5", max_tokens=99, messages=messages, tools=tools)
    first, second = dragoman.requests
    assert first.model == "claude-opus-5"
    assert first.system == "Be brief."
    assert first.tools == ("add",)
    assert "anthropic-version" in first.headers
    assert first.json["max_tokens"] == 99
    assert (first.method, first.path, first.status) == ("POST", "/v1/messages", 200)
    assert second.tool_results == {"call_a": "3"}
    dragoman.assert_resilient()


def test_conditions_choose_reply(dragoman: Dragoman) -> None:
    dragoman.reply("else").always()
    dragoman.when("weather").reply("sunny")
    dragoman.when(model="small*").reply("small")
    client = build_openai(dragoman)

    def ask(model: str, text: str) -> str | None:
        messages: Any = [{"role": "user", "content": text}]
        return (
            client.chat.completions.create(model=model, messages=messages)
            .choices[0]
            .message.content
        )

    assert ask("big", "the weather?") == "sunny"
    assert ask("small-1", "Hello") == "small"
    assert ask("big", "Hello") == "else"


def test_request_without_reply_is_rejected_with_hint(dragoman: Dragoman) -> None:
    with pytest.raises(openai.BadRequestError, match=r"queue one with dragoman\.reply"):
        ask_chat(dragoman)


def test_error_has_status_and_retry_after(dragoman: Dragoman) -> None:
    dragoman.error(529, "Too busy.", retry_after=1)
    with pytest.raises(anthropic.APIStatusError) as caught:
        build_anthropic(dragoman).messages.create(model="m", max_tokens=9, messages=HELLO)
    assert caught.value.status_code == 529
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
    dragoman.assert_resilient(caught.value)


def test_error_within_stream_follows_its_text(dragoman: Dragoman) -> None:
    dragoman.reply("So far").error(500, "Out of memory.")
    with pytest.raises(openai.APIError, match=r"Out of memory\."):
        ask_chat(dragoman)
    assert dragoman.requests[0].ending is Ending.FAILED


@pytest.mark.parametrize("stream", [True, False])
def test_dropped_connection_is_error(dragoman: Dragoman, stream: bool) -> None:
    dragoman.drop_after(tokens=3)
    client = build_openai(dragoman)
    with pytest.raises(openai.APIConnectionError) as caught:
        list(client.chat.completions.create(model="m", messages=HELLO, stream=stream))
    assert dragoman.requests[0].ending is Ending.DROPPED
    dragoman.assert_resilient(caught.value)
    with pytest.raises(AssertionError, match="was cut off, and the client reported no error"):
        dragoman.assert_resilient()


def test_truncated_stream_ends_without_last_events(dragoman: Dragoman) -> None:
    dragoman.reply(["Hello ", "world"]).truncate_after(tokens=1)
    body = post(dragoman, "/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert b'finish_reason":null' in body
    assert b"[DONE]" not in body
    assert dragoman.requests[0].ending is Ending.TRUNCATED


@pytest.mark.parametrize(
    ("kind", "error"), [("json", ValueError), ("utf8", UnicodeDecodeError), ("html", ValueError)]
)
def test_malformed_reply_cannot_be_parsed(
    dragoman: Dragoman, kind: Any, error: type[Exception]
) -> None:
    dragoman.reply("Hello").malformed(kind).times(2)
    body = post(dragoman, "/v1/chat/completions", {"messages": HELLO})
    with pytest.raises(error):
        json.loads(body)
    stream = post(dragoman, "/v1/chat/completions", {"messages": HELLO, "stream": True})
    lines = [line[6:] for line in stream.splitlines() if line and line != b"data: [DONE]"]
    with pytest.raises(error):
        json.loads(b"[%b]" % b",".join(lines))
    assert [request.ending for request in dragoman.requests] == [Ending.MALFORMED] * 2


def test_malformed_unknown_kind_is_rejected(dragoman: Dragoman) -> None:
    kind: Any = "xml"
    with pytest.raises(ValueError, match="'xml' is none of json, utf8, html"):
        dragoman.malformed(kind)


def test_stall_ends_when_client_gives_up(dragoman: Dragoman) -> None:
    dragoman.reply("Hello").stall(600).reply(" world")
    with pytest.raises(openai.APITimeoutError):
        ask_chat(dragoman, timeout=0.2)


def test_script_file_is_loaded(dragoman: Dragoman, tmp_path: Path) -> None:
    file = tmp_path / "replies.yaml"
    file.write_text("- match: {contains: Hello}\n  reply: Good day\n- reply: other\n")
    dragoman.load(file)
    assert ask_chat(dragoman) == "Good day"
    assert len(dragoman.unused_replies) == 1


def test_usage_is_sum_of_whole_answers(dragoman: Dragoman) -> None:
    dragoman.reply("Hello").usage(prompt=10, completion=4).times(2)
    ask_chat(dragoman)
    ask_chat(dragoman)
    dragoman.assert_usage(prompt=20, completion=8)
    with pytest.raises(AssertionError, match="counted 16 completion tokens, the server reported 8"):
        dragoman.assert_usage(completion=16)


async def test_environment_points_sdks_to_server(dragoman_environment: Dragoman) -> None:
    dragoman_environment.reply("Hello").times(2)
    async with openai.AsyncOpenAI() as client:
        reply = await client.responses.create(model="gpt-5", input="Hello")
    async with anthropic.AsyncAnthropic() as client:
        message = await client.messages.create(model="m", max_tokens=9, messages=HELLO)
    assert reply.output_text == "Hello"
    assert message.content[0].text == "Hello"  # type: ignore[union-attr]


def test_reset_forgets_replies_and_requests(dragoman_session: Dragoman) -> None:
    dragoman_session.reply("Hello").always()
    ask_chat(dragoman_session)
    dragoman_session.reset()
    assert dragoman_session.requests == ()
    with pytest.raises(openai.BadRequestError):
        ask_chat(dragoman_session)


def test_unread_request_is_listed_with_status(dragoman: Dragoman) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(dragoman, "/v1/chat/completion", {})
    caught.value.close()
    assert dragoman.requests == ()
    [request] = dragoman.http_requests
    assert (request.path, request.status) == ("/v1/chat/completion", 404)


@pytest.mark.dragoman_sim(max_model_len=2048)
def test_simulated_server_answers(dragoman_sim: SimulatedServer) -> None:
    client = build_openai(dragoman_sim)
    model = client.models.list().data[0]
    assert model.max_model_len == 2048  # type: ignore[attr-defined]
    reply = client.chat.completions.create(model=model.id, messages=HELLO, max_tokens=3)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


@pytest.mark.long
def test_worker_processes_have_servers_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, urllib.request, pytest

        @pytest.mark.parametrize("text", ["a", "b"])
        def test_reply(dragoman, text):
            dragoman.reply(text)
            request = urllib.request.Request(
                f"{dragoman.base_url}/v1/chat/completions",
                json.dumps({"messages": [{"role": "user", "content": text}]}).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                assert json.load(response)["choices"][0]["message"]["content"] == text
            assert [request.text for request in dragoman.requests] == [text]
        """
    )
    result = pytester.runpytest_inprocess("-n", "2", "-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=2)
