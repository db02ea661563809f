"""Requests and responses of rerank and score."""

from __future__ import annotations

import json

import msgspec
import pytest

from dragoman.core.encoder_requests import RelevanceScores, TextPairs
from dragoman.core.errors import RequestError, Unsupported
from dragoman.dialects.interfaces import Header, Profile
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.scoring import (
    RERANK,
    SCORE,
    RerankBody,
    RerankCall,
    ScoreBody,
    ScoreCall,
    read_rerank,
    read_score,
    render_rerank,
    render_scores,
    render_tei_rerank,
)

from ..bodies import OPTIONS

HEADER = Header("x-1", 7, "m")
SIDES = {"text_1": "a", "text_2": ["b", "c"]}


def rerank(**fields: object) -> RerankCall:
    return read_rerank(
        msgspec.json.encode({"query": "q", "documents": ["a", "b"], **fields}), OPTIONS
    )


def score(**fields: object) -> ScoreCall:
    return read_score(msgspec.json.encode(fields), OPTIONS)


def test_rerank_accepts_cohere_jina_and_vllm_bodies():
    assert rerank() == RerankCall("tiny", TextPairs(("q",), ("a", "b")), None, True)
    parsed = rerank(
        model="m",
        documents=["a", {"text": "b"}],
        top_n=1,
        return_documents=False,
        max_tokens_per_doc=5,
        max_tokens_per_query=3,
        truncate_prompt_tokens=-1,
        use_activation=False,
    )
    assert parsed == RerankCall("m", TextPairs(("q",), ("a", "b"), 3, 5, -1, False), 1, False)
    nothing = dict.fromkeys(RerankBody.__struct_fields__, None) | {
        "query": "q",
        "documents": ["a", "b"],
    }
    assert rerank(**nothing) == rerank()


@pytest.mark.parametrize(
    "names",
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_score_accepts_four_pairs_of_field_names(names: tuple[str, str]):
    first, second = names
    assert score(**{first: "a", second: ["b", "c"]}).texts.expand_pairs() == (
        ("a", "b"),
        ("a", "c"),
    )
    assert score(**{first: ["a", "b"], second: ["c", "d"]}).texts.expand_pairs() == (
        ("a", "c"),
        ("b", "d"),
    )
    assert score(**{first: "a", second: "b"}).texts.expand_pairs() == (("a", "b"),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_2"),
        ({"text_1": "a", "documents": "b"}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({**SIDES, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({**SIDES, "truncation_side": "left"}, "truncation_side"),
        ({**SIDES, "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
    ],
)
def test_score_mismatched_inputs_are_rejected_by_name(fields: dict[str, object], param: str):
    with pytest.raises(RequestError) as caught:
        score(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": None}, "documents"),
        ({"texts": ["a"]}, "texts"),
        ({"documents": None, "texts": []}, "texts"),
        (
            {"documents": None, "texts": ["a"], "truncation_direction": "Left"},
            "truncation_direction",
        ),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"documents": ["x"] * 10_001}, "documents"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
    ],
)
def test_rerank_invalid_input_is_rejected_by_name(fields: dict[str, object], param: str):
    with pytest.raises(RequestError) as caught:
        rerank(**fields)
    assert caught.value.param == param


def test_scoring_honoured_parameters_match_struct_fields():
    for rules, body in ((RERANK, RerankBody), (SCORE, ScoreBody)):
        honoured = {row.name for row in rules.rows if row.status is SupportStatus.HONOURED}
        assert honoured == set(body.__struct_fields__)


OTHERS = [row for row in (*RERANK.rows, *SCORE.rows) if row.status is not SupportStatus.HONOURED]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row.dialect}-{row.name}")
def test_scoring_parameter_status_matches_reader_effect(row: ParameterSupport):
    def ask(value: object) -> RerankCall | ScoreCall:
        return (
            rerank(**{row.name: value})
            if row.dialect == "rerank"
            else score(**SIDES, **{row.name: value})
        )

    for harmless in (None, *row.harmless):
        assert ask(harmless).warnings == ()
    if row.status is SupportStatus.REFUSED:
        with pytest.raises(Unsupported) as caught:
            ask({"x": 1})
        assert caught.value.param == row.name
    else:
        assert ask("x").unknown == ()


def test_rerank_results_are_sorted_by_score_stably():
    scores = RelevanceScores((0.5, 0.75, 0.5, -1.0), 12)
    ranked = json.loads(render_rerank(scores, HEADER, ("a", "b", "c", "d"), 3))
    assert ranked == {
        "id": "x-1",
        "model": "m",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
        "results": [
            {"index": 1, "relevance_score": 0.75, "document": {"text": "b", "multi_modal": None}},
            {"index": 0, "relevance_score": 0.5, "document": {"text": "a", "multi_modal": None}},
            {"index": 2, "relevance_score": 0.5, "document": {"text": "c", "multi_modal": None}},
        ],
    }
    bare = json.loads(render_rerank(scores, HEADER, None, None))
    assert bare["results"][3] == {"index": 3, "relevance_score": -1.0}


def test_score_results_keep_pair_order():
    scored = json.loads(render_scores(RelevanceScores((0.5, 0.25), 12), HEADER, Profile.OPENAI))
    assert scored == {
        "id": "x-1",
        "object": "list",
        "created": 7,
        "model": "m",
        "data": [
            {"index": 0, "object": "score", "score": 0.5},
            {"index": 1, "object": "score", "score": 0.25},
        ],
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }


def test_rerank_supports_text_embeddings_inference_form():
    parsed = rerank(documents=None, texts=["a", "b"])
    assert (parsed.is_tei, parsed.return_documents) == (True, False)
    assert parsed.texts == TextPairs(("q",), ("a", "b"))
    raw = rerank(documents=None, texts=["a", "b"], raw_scores=True, truncate=True, return_text=True)
    assert (raw.texts.activation, raw.texts.truncate) == (False, -1)
    assert raw.return_documents
    scores = RelevanceScores((0.25, 0.5), 3)
    assert json.loads(render_tei_rerank(scores, None, None)) == [
        {"index": 1, "score": 0.5},
        {"index": 0, "score": 0.25},
    ]
    assert json.loads(render_tei_rerank(scores, ("a", "b"), 1)) == [
        {"index": 1, "score": 0.5, "text": "b"}
    ]
