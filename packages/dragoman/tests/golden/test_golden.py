"""Exact outputs of every case: it is not enough that streams and full responses agree,
since both could be wrong.
"""

from __future__ import annotations

import json

import pytest

from dragoman_check.rules import anthropic, chat, completions, gemini, ollama, responses

from .renderings import CASES, GOLDEN, Golden

GRAMMARS = {"chat": chat, "completions": completions}


def name(golden: Golden) -> str:
    return f"{golden.case}.{golden.writer}"


@pytest.mark.parametrize("golden", GOLDEN, ids=name)
def test_golden_output_bytes_match_files(golden: Golden):
    for path, data in golden.files():
        assert data.decode() == path.read_text(), (
            "if intended, run: python -m tests.golden.regenerate"
        )


def test_golden_files_all_belong_to_cases():
    wanted = {path for golden in GOLDEN for path, _ in golden.files()}
    events = {CASES / f"{golden.case}.events.jsonl" for golden in GOLDEN}
    assert set(CASES.glob("*")) == wanted | events


@pytest.mark.parametrize("golden", [one for one in GOLDEN if one.writer == "messages"], ids=name)
def test_golden_anthropic_messages_follow_wire_grammar(golden: Golden):
    for path, _ in golden.files():
        if path.suffix == ".sse":
            anthropic.check_stream(path.read_bytes())
        else:
            anthropic.check_object(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    "golden", [one for one in GOLDEN if one.writer.startswith("responses")], ids=name
)
def test_golden_responses_follow_wire_grammar(golden: Golden):
    for path, _ in golden.files():
        if path.suffix == ".sse":
            responses.check_stream(path.read_bytes())
        else:
            responses.check_object(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    "golden", [one for one in GOLDEN if one.writer.startswith("ollama")], ids=name
)
def test_golden_ollama_lines_follow_wire_grammar(golden: Golden):
    is_chat = golden.writer == "ollama-chat"
    for path, _ in golden.files():
        if path.suffix == ".sse":
            ollama.check_stream(path.read_bytes(), is_chat=is_chat)
        else:
            ollama.check_object(json.loads(path.read_bytes()), is_chat=is_chat)


@pytest.mark.parametrize("golden", [one for one in GOLDEN if one.writer == "gemini"], ids=name)
def test_golden_gemini_chunks_follow_wire_grammar(golden: Golden):
    for path, _ in golden.files():
        if path.suffix == ".sse":
            gemini.check_stream(path.read_bytes())
        else:
            gemini.check_object(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    "golden", [one for one in GOLDEN if one.writer.split("-")[0] in GRAMMARS], ids=name
)
def test_golden_chat_and_completions_follow_wire_grammar(golden: Golden):
    grammar = GRAMMARS[golden.writer.split("-")[0]]
    for path, _ in golden.files():
        if path.suffix == ".sse":
            grammar.check_stream(
                path.read_bytes(),
                include_usage="usage" in golden.case,
                extra_reasons=("abort", "cache_threshold"),
            )
        else:
            grammar.check_object(
                json.loads(path.read_bytes()), extra_reasons=("abort", "cache_threshold")
            )
