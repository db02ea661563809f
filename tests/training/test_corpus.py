"""The synthetic conversations that train the embedded model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.tiny.conversation import Conversation, Turn, segments
from training.tiny.corpus import conversations, long_talk, source
from training.tiny.english import common_words, docstrings, is_held_out

TEMPLATE = (
    Path(__file__).parents[2]
    / "packages/dragoman/src/dragoman/engines/tiny/data/chat_template.jinja"
)


def build_conversations(seed: int, count: int = 400, progress: float = 0.5) -> list[Conversation]:
    """Build some conversations of the corpus."""
    return list(itertools.islice(conversations(source(seed), lambda: progress), count))


@pytest.fixture(scope="module")
def corpus() -> list[Conversation]:
    return build_conversations(seed=11, count=1000)


def test_corpus_same_seed_is_identical():
    assert build_conversations(seed=3) == build_conversations(seed=3)


def test_corpus_other_seed_differs():
    assert build_conversations(seed=3) != build_conversations(seed=4)


def test_corpus_tool_calls_are_declared_and_valid(corpus: list[Conversation]):
    calls = 0
    for conversation in corpus:
        schemas = {
            tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools
        }
        assert len(schemas) == len(conversation.tools), "two tools of one name"
        for call in itertools.chain.from_iterable(turn.calls for turn in conversation.turns):
            jsonschema_rs.validate(
                schemas[call.name] | {"additionalProperties": False}, call.arguments
            )
            calls += 1
    assert calls > 200


def test_corpus_tool_arguments_follow_schema_order(corpus: list[Conversation]):
    for conversation in corpus:
        schemas = {
            tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools
        }
        for call in itertools.chain.from_iterable(turn.calls for turn in conversation.turns):
            declared = list(schemas[call.name]["properties"])
            assert list(call.arguments) == [name for name in declared if name in call.arguments]


def test_corpus_tool_calls_are_formatted_like_json_dumps(corpus: list[Conversation]):
    for call in itertools.chain.from_iterable(turn.calls for one in corpus for turn in one.turns):
        body = call.text().removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        assert body == json.dumps(json.loads(body), ensure_ascii=False)
        assert list(json.loads(body)) == ["name", "arguments"]


def test_corpus_segments_equal_rendered_chat_template(corpus: list[Conversation]):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text())
    for conversation in corpus:
        if conversation.turns:
            variables: dict[str, Any] = {
                "messages": conversation.messages(),
                "tools": list(conversation.tools),
            }
            assert "".join(segment.text for segment in segments(conversation)) == template.render(
                **variables
            )


def test_corpus_trained_segments_are_assistant_text(corpus: list[Conversation]):
    for conversation in corpus:
        learned = [segment.text for segment in segments(conversation) if segment.learned]
        assert all(text.endswith("<|im_end|>") for text in learned)
        if conversation.turns:
            answers = [turn for turn in conversation.turns if turn.role == "assistant"]
            assert [text.split("</think>\n\n")[-1] for text in learned] == [
                f"{turn.answer()}<|im_end|>" for turn in answers
            ]


def test_corpus_conversations_end_with_assistant_turn(corpus: list[Conversation]):
    assert all(one.turns[-1].role == "assistant" for one in corpus if one.turns)


def test_held_out_words_never_occur_in_training_words():
    trained = source(0).words
    unseen = source(0, held_out=True).words
    assert not set(trained) & set(unseen)
    assert all(map(is_held_out, unseen))
    assert len(unseen) > 100


def test_common_words_are_lower_case_ascii():
    words = common_words(docstrings())
    assert len(words) > 1000
    assert all(word.isascii() and word.islower() for word in words)


def test_corpus_first_tenth_has_no_tools():
    assert not any(one.tools for one in build_conversations(seed=5, progress=0.05))


def test_long_talk_repeats_earlier_question():
    talk = long_talk(source(8))
    assert talk.turns[-2:] in [talk.turns[at : at + 2] for at in range(len(talk.turns) - 2)]


def test_segments_turn_without_reasoning_have_no_think_block():
    text = "".join(
        segment.text
        for segment in segments(Conversation((Turn("user", "Hi"), Turn("assistant", "Hello"))))
    )
    assert "<think>" not in text
