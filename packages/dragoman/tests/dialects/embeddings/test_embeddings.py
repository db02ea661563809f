"""Requests and responses of /v1/embeddings."""

from __future__ import annotations

import base64
import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.encoder_requests import Embeddings, TextInputs
from dragoman.core.errors import RequestError, Unsupported
from dragoman.dialects.interfaces import Header, Profile, ReaderOptions
from dragoman.dialects.openai_embeddings import (
    EMBEDDINGS,
    EmbedCall,
    EmbeddingsBody,
    read_embeddings,
    render_embeddings,
)
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus

from ..bodies import OPTIONS

HEADER = Header("embd-1", 7, "m")
# OpenAI's OpenAPI document 2.3.0, and vLLM 0.33.
PUBLISHED = """input model encoding_format dimensions user truncate_prompt_tokens truncation_side padding request_id
priority mm_processor_kwargs cache_salt add_special_tokens embed_dtype endianness use_activation"""  # noqa: E501


def embeddings(**fields: object) -> EmbedCall:
    return read_embeddings(msgspec.json.encode({"input": "x", **fields}), OPTIONS)


def read_error(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        embeddings(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("input", "inputs"),
    [
        ("x", ("x",)),
        (["x", "y"], ("x", "y")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["x"] * 2048, ("x",) * 2048),
        ([7] * 3000, ((7,) * 3000,)),
    ],
)
def test_embeddings_text_and_token_list_are_one_input(input: object, inputs: tuple[object, ...]):
    assert embeddings(input=input).texts.inputs == inputs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["x", 1]}, "input"),
        ({"input": ["x", [1]]}, "input"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": None}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"normalize": True, "use_activation": False}, "use_activation"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
def test_embeddings_invalid_field_is_rejected_by_name(fields: dict[str, object], param: str):
    assert read_error(**fields).param == param


def test_embeddings_missing_input_is_rejected():
    with pytest.raises(RequestError, match="input"):
        read_embeddings(b'{"model": "m"}', OPTIONS)


def test_embeddings_fields_are_parsed_and_null_is_ignored():
    nothing = dict.fromkeys(EmbeddingsBody.__struct_fields__, None) | {"input": "x"}
    assert embeddings(**nothing) == EmbedCall("tiny", TextInputs(("x",)))
    parsed = embeddings(
        model="other",
        user="u",
        dimensions=8,
        encoding_format="base64",
        normalize=False,
        truncate_prompt_tokens=-1,
        truncation_side="left",
        add_special_tokens=False,
    )
    assert parsed == EmbedCall("other", TextInputs(("x",), -1, True, False), 8, False, True)
    assert embeddings(use_activation=False).normalize is False


def test_embeddings_reader_reused_plan_reads_the_same_call():
    options = ReaderOptions(default_model="m")
    for fields in ({}, {"dimensions": 8, "unheard": 1}, {"encoding_format": "base64"}):
        for input in ("a", ["b", "c"], [1, 2], "a"):
            body = msgspec.json.encode({"input": input, **fields})
            expected = read_embeddings(body, ReaderOptions(default_model="m"))
            assert read_embeddings(body, options) == expected
    body = b'{"input": "a"}'
    other = msgspec.structs.replace(options, default_model="other")
    assert read_embeddings(body, other).model == "other"
    assert read_embeddings(body, options).model == "m"


def test_embeddings_table_covers_published_fields():
    rows = {row.name for row in EMBEDDINGS.rows}
    assert set(PUBLISHED.split()) <= rows
    honoured = {row.name for row in EMBEDDINGS.rows if row.status is SupportStatus.HONOURED}
    assert honoured == {"input", *EmbeddingsBody.__struct_fields__}


@pytest.mark.parametrize(
    "row",
    [row for row in EMBEDDINGS.rows if row.status is not SupportStatus.HONOURED],
    ids=lambda row: row.name,
)
def test_embeddings_parameter_status_matches_reader_effect(row: ParameterSupport):
    for harmless in (None, *row.harmless):
        assert embeddings(**{row.name: harmless}).warnings == ()
    if row.status is SupportStatus.REFUSED:
        error = read_error(**{row.name: {"x": 1}})
        assert isinstance(error, Unsupported)
        assert error.param == row.name
    else:
        assert embeddings(**{row.name: "x"}).unknown == ()


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)
)
def test_embeddings_base64_equals_numbers_bitwise(numbers: list[float]):
    vector = struct.pack(f"<{len(numbers)}f", *numbers)
    vectors = Embeddings((vector,), len(numbers), 3)
    written = json.loads(render_embeddings(vectors, HEADER, Profile.OPENAI, as_base64=False))[
        "data"
    ][0]["embedding"]
    text = json.loads(render_embeddings(vectors, HEADER, Profile.OPENAI, as_base64=True))["data"][
        0
    ]["embedding"]
    assert struct.pack(f"<{len(written)}f", *written) == base64.b64decode(text) == vector


def test_embeddings_response_has_openai_or_vllm_form():
    vectors = Embeddings((struct.pack("<2f", 1, 0.5), struct.pack("<2f", 0, 2)), 2, 9)
    data = [
        {"index": 0, "object": "embedding", "embedding": [1.0, 0.5]},
        {"index": 1, "object": "embedding", "embedding": [0.0, 2.0]},
    ]
    plain = {
        "object": "list",
        "data": data,
        "model": "m",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    assert json.loads(render_embeddings(vectors, HEADER, Profile.OPENAI, as_base64=False)) == plain
    usage = {
        "prompt_tokens": 9,
        "total_tokens": 9,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    vllm = {**plain, "usage": usage, "id": "embd-1", "created": 7}
    assert json.loads(render_embeddings(vectors, HEADER, Profile.VLLM, as_base64=False)) == vllm
