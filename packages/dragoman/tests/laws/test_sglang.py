"""SGLang's /generate: the last event of each choice equals that choice of the full
response.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.interfaces import Header
from dragoman.dialects.sglang.writer import SglangRenderOptions, SglangWriter
from dragoman_check.rules import sglang as grammar

from .sdk import write_stream
from .strategies import Case, Kinds, cases

HEADER = Header("gen-1", 1700000000, "org/model")
# The strategies' weight versions do not match tokens: that rule of the grammar is
# tested on real answers.
MANY = Kinds(max_prompts=3, max_choices=2, weights=False)
views = st.builds(
    SglangRenderOptions,
    as_list=st.just(True),
    logprobs=st.sampled_from((None, 0, 1, 2)),
    token_texts=st.booleans(),
    logprob_start=st.sampled_from((None, 0, 1, 9)),
    prompt_token_ids=st.booleans(),
)


@given(cases(MANY), views)
def test_last_event_of_each_choice_equals_full_response(case: Case, view: SglangRenderOptions):
    stream = write_stream(SglangWriter(HEADER, view), case.events)
    last = grammar.check_stream(stream, choices=len(case.reply.choices))
    full: list[Any] = json.loads(SglangWriter(HEADER, view).render_full(case.reply))
    for answer in full:
        grammar.check_object(answer)
    assert last == full
