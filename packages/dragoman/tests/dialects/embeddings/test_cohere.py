"""Cohere's `/v2/embed`: bodies and responses."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from dragoman.core.encoder_requests import Embeddings, TextInputs
from dragoman.core.errors import RequestError
from dragoman.dialects.cohere_embed import CohereEmbedCall, read_cohere_embed, render_cohere_embed
from dragoman.dialects.interfaces import Header, ReaderOptions

HEADER = Header("embd-1", 1_700_000_000, "m")
VECTOR = (0.5, -0.25, 0.0, 1.0, -1.0, -1.0, -1.0, 2.0, 3.0)


def read(**fields: object) -> CohereEmbedCall:
    return read_cohere_embed(
        msgspec.json.encode({"texts": ["a", "b"], **fields}), ReaderOptions(default_model="m")
    )


def test_cohere_embed_body_is_parsed():
    assert read() == CohereEmbedCall("m", TextInputs(("a", "b"), -1), None, ("float",))
    parsed = read(
        truncate="NONE",
        output_dimension=4,
        embedding_types=["binary", "float", "binary"],
        model="x",
    )
    assert parsed == CohereEmbedCall("x", TextInputs(("a", "b")), 4, ("binary", "float"))
    assert read(truncate="START", max_tokens=9).texts == TextInputs(("a", "b"), 9, True)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(texts=None, inputs=[{"content": parts}]).texts.inputs == ("ab",)
    assert read(input_type="search_query").warnings == ()
    assert read(odd=1).unknown == ("odd",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"texts": None}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"inputs": []}, "inputs"),
        ({"texts": None, "images": ["data:x"]}, "images"),
        (
            {"texts": None, "inputs": [{"content": [{"type": "image_url"}]}]},
            "inputs[0].content[0].type",
        ),
        ({"embedding_types": ["int8"]}, "embedding_types[0]"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["x"] * 2049}, "texts"),
    ],
)
def test_cohere_embed_invalid_input_is_rejected_by_name(fields: dict[str, Any], param: str):
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param


def test_cohere_embed_renders_all_vector_types():
    vectors = Embeddings((struct.pack("<9f", *VECTOR),), 9, 7)
    request = read(texts=["a"], embedding_types=["float", "binary", "ubinary", "base64"])
    response = json.loads(render_cohere_embed(vectors, HEADER, request))
    assert response["embeddings"] == {
        "float": [list(VECTOR)],
        "ubinary": [[0b10110001, 0b10000000]],
        "binary": [[0b10110001 - 128, 0]],
        "base64": [base64.b64encode(struct.pack("<9f", *VECTOR)).decode()],
    }
    assert (response["id"], response["texts"], response["response_type"]) == (
        "embd-1",
        ["a"],
        "embeddings_by_type",
    )
    assert response["meta"] == {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": 7},
    }
    assert set(
        json.loads(render_cohere_embed(vectors, HEADER, read(texts=["a"])))["embeddings"]
    ) == {"float"}
