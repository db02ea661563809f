"""For any input the readers return a call or raise RequestError, never another
exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman.dialects.chat import read_chat
from dragoman.dialects.chat.wire import CHAT
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.completions.wire import COMPLETIONS
from dragoman.dialects.decisions import read_decisions, read_systemone
from dragoman.dialects.decisions.openai_wire import DECISIONS
from dragoman.dialects.decisions.systemone_wire import SYSTEMONE
from dragoman.dialects.interfaces import Profile, ReaderOptions
from dragoman.dialects.llama_cpp import read_completion, read_infill
from dragoman.dialects.llama_cpp.wire import COMPLETION, INFILL
from dragoman.dialects.openai_embeddings import EMBEDDINGS, read_embeddings
from dragoman.dialects.openai_errors import render_openai_error
from dragoman.dialects.scoring import RERANK, SCORE, read_rerank, read_score
from dragoman.dialects.sglang.reader import read_sglang
from dragoman.dialects.sglang.wire import SGLANG, SGLANG_PARAMS
from dragoman.dialects.tgi import read_tgi
from dragoman.dialects.tgi.wire import TGI, TGI_PARAMS
from dragoman.dialects.tokenize import read_detokenize, read_tokenize
from dragoman.dialects.vllm_generate.reader import read_generate
from dragoman.dialects.vllm_generate.wire import GENERATE
from tests.pictures import PIXEL_URL

Reader = Callable[[bytes, ReaderOptions], object]
READERS: list[Reader] = [
    read_chat,
    read_completions,
    read_tokenize,
    read_detokenize,
    read_embeddings,
    read_rerank,
    read_score,
    read_decisions,
    read_systemone,
    read_completion,
    read_infill,
    read_generate,
    read_sglang,
    read_tgi,
]
PROFILES = [
    ReaderOptions(profile=Profile.OPENAI),
    ReaderOptions(profile=Profile.VLLM, default_model="m"),
]
RAW = (*GENERATE.rows, *SGLANG.rows, *SGLANG_PARAMS.rows, *TGI.rows, *TGI_PARAMS.rows)
READING = (
    *EMBEDDINGS.rows,
    *RERANK.rows,
    *SCORE.rows,
    *DECISIONS.rows,
    *SYSTEMONE.rows,
    *COMPLETION.rows,
    *INFILL.rows,
    *RAW,
)
NAMES = sorted({row.name for row in (*CHAT.rows, *COMPLETIONS.rows, *READING)})
# Words with a meaning in some field, so that fuzzed bodies pass the first checks.
ROLES = ("user", "assistant", "tool", "function", "system", "developer")
PARTS = (
    "text",
    "image_url",
    "input_audio",
    "file",
    "refusal",
    "custom",
    "grammar",
    "lark",
    "regex",
)
WORDS = (
    *ROLES,
    *PARTS,
    "json_schema",
    "json_object",
    "auto",
    "none",
    "required",
    "allowed_tools",
    "low",
)
URLS = (PIXEL_URL, "data:image/png;base64,AA==", "data:;base64,!", "http://x", "file:///etc/passwd")
OF_MESSAGES = (
    "content",
    "name",
    "reasoning",
    "refusal",
    "tool_call_id",
    "tool_calls",
    "function_call",
)
OF_PARTS = (
    "type",
    "text",
    "image_url",
    "url",
    "detail",
    "input_audio",
    "data",
    "format",
    "file",
    "file_data",
    "file_id",
)
OF_TOOLS = (
    "function",
    "custom",
    "arguments",
    "input",
    "id",
    "parameters",
    "strict",
    "mode",
    "tools",
    "allowed_tools",
)
OF_FORMATS = (
    "schema",
    "json_schema",
    "grammar",
    "syntax",
    "definition",
    "regex",
    "choice",
    "json",
    "include_usage",
    "7",
)
KEYS = (*OF_MESSAGES, *OF_PARTS, *OF_TOOLS, *OF_FORMATS)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from((*WORDS, *URLS))
    | st.text(st.characters(), max_size=6)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
message: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(OF_MESSAGES), values, max_size=3
).flatmap(lambda rest: st.sampled_from(ROLES).map(lambda role: {"role": role, **rest}))
messages = st.lists(message, max_size=2)
question: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.sampled_from(("predicate", "choice", "score", "noul"))},
    optional={
        "instructions": values,
        "criteria": values,
        "choices": st.lists(st.fixed_dictionaries({"value": values}), max_size=3) | values,
        "levels": st.lists(st.fixed_dictionaries({"label": values}), max_size=3) | values,
    },
)
questions = st.lists(question, max_size=2) | st.dictionaries(
    st.text(max_size=3), question, max_size=2
)
starts = st.fixed_dictionaries(
    {},
    optional={
        "messages": messages | values,
        "prompt": values,
        "tokens": values,
        "input": values,
        "token_ids": values,
        "sampling_params": values,
        "inputs": values,
        "parameters": values,
        "query": values,
        "documents": values,
        "text_1": values,
        "text_2": values,
        "state": values,
        "questions": questions | values,
    },
)
bodies = st.tuples(st.dictionaries(st.sampled_from(NAMES), values, max_size=4), starts).map(
    lambda two: {**two[0], **two[1]}
)


def read(reader: Reader, body: bytes, options: ReaderOptions) -> None:
    """Parse a body. An error must be a short, printable 400; other exceptions are
    raised.
    """
    try:
        reader(body, options)
    except RequestError as error:
        refusal = error
    else:
        return
    assert refusal.status == 400
    assert 0 < len(refusal.message) < 2_000
    render_openai_error(refusal, options.profile).decode()


@pytest.mark.parametrize("reader", READERS)
@given(body=st.binary(max_size=200), options=st.sampled_from(PROFILES))
def test_readers_arbitrary_bytes_raise_only_request_error(
    reader: Reader, body: bytes, options: ReaderOptions
):
    read(reader, body, options)


@pytest.mark.parametrize("reader", READERS)
@given(body=bodies, options=st.sampled_from(PROFILES))
def test_readers_arbitrary_json_raises_only_request_error(
    reader: Reader, body: object, options: ReaderOptions
):
    """json.dumps writes NaN, Infinity and lone surrogates too."""
    read(reader, json.dumps(body).encode(), options)


@pytest.mark.parametrize("reader", READERS)
@given(
    body=bodies,
    cut=st.integers(0, 400),
    noise=st.binary(max_size=3),
    options=st.sampled_from(PROFILES),
)
def test_readers_damaged_json_raises_only_request_error(
    reader: Reader, body: object, cut: int, noise: bytes, options: ReaderOptions
):
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    read(reader, data[:cut] + noise + data[cut + 1 :], options)
