"""Gemini's dialect: the chunks of a stream add up to the full response, including calls,
signatures and logprobs.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.events import FinishReason
from dragoman.core.message import Reasoning, Refusal, Text, ToolCall
from dragoman.dialects.gemini import Framing, GeminiRenderOptions, GeminiWriter
from dragoman.dialects.interfaces import Header
from dragoman_check.rules import gemini as grammar

from .sdk import write_stream
from .strategies import Case, Kinds, cases

HEADER = Header("gemini-1", 0, 'a"\u2028')
MANY = Kinds(custom=False, weights=False)


def seal(text: str, vendor_seal: str) -> str:
    return json.dumps([text, vendor_seal])


views = st.builds(
    GeminiRenderOptions,
    includes_thoughts=st.booleans(),
    logprobs=st.sampled_from((None, 0, 1)),
    seal=st.sampled_from((None, seal)),
)


@given(cases(MANY), views)
def test_stream_chunks_fold_to_full_response(case: Case, view: GeminiRenderOptions):
    chunks = grammar.check_stream(write_stream(GeminiWriter(HEADER, view), case.events))
    full: dict[str, Any] = json.loads(GeminiWriter(HEADER, view).render_full(case.reply))
    grammar.check_object(full)
    assert grammar.fold_chunks(chunks) == grammar.fold_chunks([full])
    array = GeminiWriter(HEADER, replace(view, framing=Framing.ARRAY))
    assert grammar.check_array(write_stream(array, case.events)) == chunks


@given(cases(MANY), views)
def test_full_response_contains_reply_content(case: Case, view: GeminiRenderOptions):
    full = grammar.fold_chunks([json.loads(GeminiWriter(HEADER, view).render_full(case.reply))])
    for index, choice in enumerate(case.reply.choices):
        candidate = full["candidates"][index]
        parts = candidate["parts"]
        texts = [part for part in parts if "text" in part]
        answer = "".join(part["text"] for part in texts if not part.get("thought"))
        expected = [part.text for part in choice.parts if isinstance(part, Text | Refusal)]
        assert answer == "".join(expected)
        thoughts = "".join(part["text"] for part in texts if part.get("thought"))
        assert thoughts == (choice.join_reasoning() if view.includes_thoughts else "")
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [(call["id"], call["name"], call["args"]) for call in calls] == [
            (call.id, call.name, json.loads(call.arguments)) for call in choice.list_calls()
        ]
        signed = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
        sealed = [json.loads(base64.b64decode(signature))[0] for signature in signed]
        assert "".join(sealed) == ("" if view.seal is None else choice.join_reasoning())
        if view.logprobs is not None and choice.tokens:
            tokens = [entry["token"] for entry in candidate["logprobsResult"]["chosenCandidates"]]
            assert tokens == [token.text for token in choice.tokens]


@given(
    cases(Kinds((Text, ToolCall), (FinishReason.LENGTH, FinishReason.ABORT), 1, custom=False)),
    st.data(),
)
def test_truncated_call_is_omitted(case: Case, data: st.DataObject):
    parts = case.reply.choices[0].parts
    if not parts or not isinstance(parts[-1], ToolCall) or len(parts[-1].arguments) < 3:
        return
    length = data.draw(st.integers(0, len(parts[-1].arguments) - 1))
    cut = replace(parts[-1], arguments=parts[-1].arguments[:length])
    choice = replace(case.reply.choices[0], parts=(*parts[:-1], cut))
    writer = GeminiWriter(HEADER, GeminiRenderOptions())
    full = json.loads(writer.render_full(replace(case.reply, choices=(choice,))))
    sent = full["candidates"][0]["content"]["parts"]
    calls = [part for part in sent if "functionCall" in part]
    assert len(calls) == len(choice.list_calls()) - 1


def test_reasoning_type_is_known_to_strategies():
    """The laws above would hold trivially without reasoning."""
    assert Reasoning in MANY.parts
