"""Sampled token ids are replayed in later prompts, and nothing else of a prompt
changes.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts import vocabularies
from tests.prompts.reference import NOW
from tests.prompts.templates import template

from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation
from dragoman.prompts.render import Renderer
from dragoman.prompts.rendered import Rendered
from dragoman.prompts.token_replay import SampledPrefixes, find_ids_since_control

TOKENIZER = vocabularies.embedded()
RENDERER = Renderer(template("embedded"), TOKENIZER)
END = TOKENIZER.special_tokens["<|im_end|>"]


def render_next(
    *sampled: tuple[int, ...], answer: str = "Hello there", question: str = "Hi"
) -> Rendered:
    messages = (
        Message(Role.USER, (Text(question),)),
        Message(Role.ASSISTANT, (Text(answer),)),
        Message(Role.USER, (Text("And?"),)),
    )
    return RENDERER.render(Conversation(messages, sampled_turns=sampled), now=NOW)


def opening() -> tuple[int, ...]:
    conversation = Conversation((Message(Role.USER, (Text("Hi"),)),))
    return find_ids_since_control(RENDERER.render(conversation, now=NOW).ids, TOKENIZER.control_ids)


def by_letters(text: str) -> tuple[int, ...]:
    return tuple(id for letter in text for id in TOKENIZER.encode(letter, special=False))


def test_token_replay_reuses_sampled_ids_of_reply():
    run = (*opening(), *by_letters("Hello there"), END)
    plain = render_next()
    found = render_next(run)
    assert found.text == plain.text
    assert len(found.ids) > len(plain.ids)
    assert any(found.ids[i : i + len(run)] == run for i in range(len(found.ids)))


def test_token_replay_different_text_uses_tokenizer():
    assert render_next((*opening(), *by_letters("Hello their"), END)).ids == render_next().ids
    assert render_next((*opening(), *by_letters("Hello there!"), END)).ids == render_next().ids


def test_token_replay_equal_texts_in_sampled_order():
    spelled = SampledPrefixes(
        [(1, 2), (0, 3)], frozenset([0]), lambda id: {1: b"a", 2: b"b", 3: b"ab"}[id]
    )
    assert [spelled.take_ids("ab"), spelled.take_ids("ab"), spelled.take_ids("ab")] == [
        (1, 2),
        (3,),
        None,
    ]


def test_token_replay_ignores_ids_outside_vocabulary():
    run = (
        *opening(),
        *TOKENIZER.encode("Hello there", special=False),
        TOKENIZER.vocab_size + 1,
        END,
    )
    assert render_next(run).ids == render_next().ids


def bytes_of(ids: tuple[int, ...]) -> bytes:
    return b"".join(map(TOKENIZER.token_bytes, ids))


WORDS = ("<|im_end|>", "<|im_start|>assistant\n", "<think>", "Hi", " ", "\n", "é😀")
texts = st.lists(st.sampled_from(WORDS)).map("".join)
runs = st.lists(st.integers(0, TOKENIZER.vocab_size + 5)) | texts.map(by_letters) | texts.map(
    lambda text: tuple(TOKENIZER.encode(text, special=True))
)  # fmt: skip


@given(st.lists(runs.map(tuple)), texts, texts)
def test_token_replay_preserves_text_and_control_tokens(
    sampled: list[tuple[int, ...]], answer: str, question: str
):
    spelled = [(*opening(), *run, END) for run in sampled]
    plain, found = (
        render_next(*hints, answer=answer, question=question)
        for hints in ([], [*sampled, *spelled])
    )
    assert msgspec.structs.replace(found, ids=()) == msgspec.structs.replace(plain, ids=())
    assert bytes_of(found.ids) == bytes_of(plain.ids)
    controls = TOKENIZER.control_ids
    assert [id for id in found.ids if id in controls] == [id for id in plain.ids if id in controls]


@pytest.mark.parametrize(
    ("prompt", "tail"), [((), ()), ((5,), (5,)), ((0, 5, 6), (5, 6)), ((5, 0), ())]
)
def test_find_ids_since_control_returns_ids_after_last_control(
    prompt: tuple[int, ...], tail: tuple[int, ...]
):
    assert find_ids_since_control(prompt, frozenset([0])) == tail
