"""/tokenize and /detokenize."""

from __future__ import annotations

import json

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.message import FunctionTool, Message, Role, Text
from dragoman.core.request import Conversation
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.dialects.tokenize import (
    TokenizeCall,
    read_detokenize,
    read_tokenize,
    render_detokenize,
    render_tokenize,
)

from .bodies import HELLO, OPTIONS, WEATHER


def tokenize(**fields: object) -> TokenizeCall:
    return read_tokenize(msgspec.json.encode(fields), OPTIONS)


def test_tokenize_prompt_adds_special_tokens_by_default():
    assert tokenize(prompt="x") == TokenizeCall("tiny", "x", True, False)
    assert not tokenize(prompt="x", add_special_tokens=False).add_special_tokens
    assert tokenize(prompt="x", return_token_strs=True).return_token_strs


def test_tokenize_messages_are_parsed_like_chat():
    call = tokenize(
        messages=HELLO, tools=[WEATHER], add_generation_prompt=False, chat_template_kwargs={"a": 1}
    )
    assert isinstance(call.prompt, Conversation)
    assert call.prompt.messages == (Message(Role.USER, (Text("hello"),)),)
    assert call.prompt.tools == (FunctionTool("weather", None, '{"type":"object"}'),)
    assert call.prompt.template.kwargs == '{"a":1}'
    assert not call.prompt.template.add_generation_prompt
    assert not call.add_special_tokens


def test_unknown_fields_are_reported():
    assert tokenize(prompt="x", y=1).unknown == ("y",)
    assert read_detokenize(b'{"tokens":[1],"y":1}', OPTIONS).unknown == ("y",)


def test_tokenize_null_fields_equal_absent_fields():
    assert tokenize(prompt="x", messages=None) == tokenize(prompt="x")
    assert tokenize(prompt=None, messages=HELLO) == tokenize(messages=HELLO)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "x", "messages": HELLO}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"messages": []}, "messages"),
    ],
)
def test_tokenize_requires_either_prompt_or_messages(body: object, param: str):
    with pytest.raises(RequestError) as caught:
        read_tokenize(msgspec.json.encode(body), OPTIONS)
    assert caught.value.param == param


def test_detokenize_tokens_are_parsed_and_validated():
    assert read_detokenize(b'{"tokens":[1,2]}', OPTIONS).tokens == (1, 2)
    for bad in (b'{"tokens":[-1]}', b'{"tokens":["1"]}', b'{"tokens":null}', b"{}"):
        with pytest.raises(RequestError, match="tokens"):
            read_detokenize(bad, OPTIONS)
    with pytest.raises(RequestError, match="model"):
        read_detokenize(b'{"tokens":[1]}', ReaderOptions())


def test_tokenize_responses_match_vllm():
    assert (
        render_tokenize([529, 526], 1024)
        == b'{"count":2,"max_model_len":1024,"tokens":[529,526],"token_strs":null}'
    )
    assert json.loads(render_tokenize([1], 9, ["\ud800"]))["token_strs"] == ["?"]
    assert render_detokenize('a"b') == b'{"prompt":"a\\"b"}'
