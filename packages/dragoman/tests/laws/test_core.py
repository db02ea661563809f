"""The event grammar: generated streams are legal, and the fold restores the answer from
any stream.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from dragoman.core.event_grammar import ProtocolError, check_events
from dragoman.core.events import ChoiceFinished, Delta, Finished, FinishReason, Started, Usage
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Sampling, SamplingOptions

from .strategies import Case, Kinds, cases

MANY = Kinds(max_prompts=2)


def fold(case: Case) -> ReplyBuilder:
    folded = ReplyBuilder()
    for event in check_events(case.events):
        folded.feed(event)
    return folded


@given(cases(MANY))
def test_fold_restores_reply_from_split_interleaved_events(case: Case):
    assert fold(case).build() == case.reply


@given(cases(MANY))
def test_fold_preserves_exact_tokens(case: Case):
    for index, choice in enumerate(fold(case).build().choices):
        mine = [
            event
            for event in case.events
            if isinstance(event, Delta | ChoiceFinished) and event.choice == index
        ]
        assert choice.tokens == tuple(token for event in mine for token in event.tokens)


@pytest.mark.parametrize(
    ("begin", "usage"),
    [
        (Started(-1), Usage(1, 1)),
        (Started(1, -1), Usage(1, 1)),
        (Started(1), Usage(-1, 1)),
        (Started(1), Usage(1, -1)),
        (Started(1), Usage(1, 1, -1)),
        (Started(1), Usage(1, 1, 0, -1)),
    ],
)
def test_check_events_negative_count_raises_protocol_error(begin: Started, usage: Usage):
    events = [begin, ChoiceFinished(0, FinishReason.STOP), Finished(usage)]
    with pytest.raises(ProtocolError, match="is not a valid token count"):
        list(check_events(events))


def test_client_values_override_defaults():
    assert SamplingOptions(top_k=3).resolve(Sampling(top_k=9, min_p=0.1)) == Sampling(
        top_k=3, min_p=0.1
    )
