"""TGI's dialect: the events of a stream equal the full response, with each token once
and in order.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.reply import ReplyBuilder
from dragoman.dialects.tgi import TgiRenderOptions, TgiWriter
from dragoman_check.rules import tgi as grammar

from .sdk import write_stream
from .strategies import Case, Kinds, cases

ONE = Kinds(max_choices=1, weights=False)
views = st.builds(
    TgiRenderOptions,
    details=st.just(True),
    logprobs=st.booleans(),
    prefill=st.booleans(),
    top_tokens=st.sampled_from((0, 1)),
    seed=st.sampled_from((None, 7)),
    prefix=st.sampled_from(("", "Say: ")),
    # Whether or not the answer reaches them: the event that reports the end must not
    # change anything else.
    max_tokens=st.sampled_from((None, 1, 3)),
    stops=st.sampled_from(((), ("a", "\u2028"))),
)


def drop_text(token: dict[str, Any]) -> dict[str, Any]:
    """Drop the text of a token, which only streams cut at the answer's end."""
    return {name: value for name, value in token.items() if name != "text"}


@given(cases(ONE), views)
def test_stream_events_match_full_response(case: Case, view: TgiRenderOptions):
    events = grammar.check_stream(write_stream(TgiWriter(view), case.events), prefix=view.prefix)
    full: dict[str, Any] = json.loads(TgiWriter(view).render_full(case.reply))
    grammar.check_object(full)
    last = events[-1]
    details = full["details"]
    assert last["generated_text"] == full["generated_text"]
    assert [drop_text(event["token"]) for event in events if event["token"]["id"] != -1] == [
        drop_text(token) for token in details["tokens"]
    ]
    if view.top_tokens:
        assert [event["top_tokens"] for event in events if "top_tokens" in event] == details[
            "top_tokens"
        ]
    for name in ("finish_reason", "generated_tokens", "seed"):
        assert last["details"][name] == details[name]
    assert last["details"]["input_length"] == case.reply.usage.prompt


@given(st.lists(st.text("ab é\n", min_size=1, max_size=3), min_size=1, max_size=5), st.data())
def test_token_texts_match_full_response_without_delay(pieces: list[str], data: st.DataObject):
    """The tokens join to the text, except for its end, which a stop string removed."""
    given = [Token(id, piece) for id, piece in enumerate(pieces)]
    length = len("".join(pieces)) - data.draw(st.integers(0, len(pieces[-1])))
    events: list[Event] = [Started(1)]
    for token in given:
        text = token.text[:length]
        length = max(0, length - len(token.text))
        if text:
            events.append(TextDelta(0, text, (token,)))
    tail = (*given[len(events) - 1 :], Token(9, "</s>", special=True))
    events += [ChoiceFinished(0, FinishReason.STOP, None, tail), Finished(Usage(1, len(given) + 1))]
    fold = ReplyBuilder()
    view = TgiRenderOptions(details=True)
    writer = TgiWriter(view)
    streamed = b""
    for number, event in enumerate(events):
        fold.feed(event)
        output = writer.feed(event)
        if isinstance(event, TextDelta) and isinstance(events[number + 1], TextDelta):
            assert output.count(b"data: ") == 1
        streamed += output
    tokens = [
        (event["token"]["id"], event["token"]["text"]) for event in grammar.check_stream(streamed)
    ]
    full = json.loads(TgiWriter(view).render_full(fold.build()))
    assert tokens == [(token["id"], token["text"]) for token in full["details"]["tokens"]]
