"""Special tokens that a tokenizer adds to a text are added to a conversation too, on
request.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.pipeline.call_terms import CallTerms
from dragoman.pipeline.detokenizer import Vocabulary
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.prompt_encoding import encode_prompt
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.render import Renderer
from dragoman.prompts.template_loader import load_template
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

REQUEST = GenerateRequest(
    "m", Conversation((Message(Role.USER, (Text("hello"),)),)), add_special_tokens=False
)
TERMS = CallTerms("x", new_id=lambda: "x", now=datetime.fromtimestamp(0, UTC))


@pytest.fixture(scope="module")
def beginning() -> TokenBackend:
    """Return the embedded model's tokenizer, with a token that it prepends to every
    text.
    """
    (model,) = build_models(Settings(), SystemClock())
    assert isinstance(model.backend, TokenBackend)
    directory = tiny.find_bundled_model()
    data = json.loads((directory / "tokenizer.json").read_bytes())
    first = data["added_tokens"][0]
    piece = {"SpecialToken": {"id": first["content"], "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    named = {"id": first["content"], "ids": [first["id"]], "tokens": [first["content"]]}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece, text],
        "pair": [piece, text, other],
        "special_tokens": {first["content"]: named},
    }
    tokenizer = HfTokenizer(json.dumps(data))
    template = load_template(directory)
    assert template is not None
    assert tokenizer.wrapping.prefix == (first["id"],)
    return TokenBackend(
        model.backend.engine,
        tokenizer,
        Vocabulary(tokenizer),
        BoundedCompiler(tokenizer, [0]),
        frozenset({0}),
        Renderer(template, tokenizer),
    )


async def test_add_special_tokens_prefixes_conversation_prompt(
    beginning: TokenBackend,
):
    bare = await encode_prompt(beginning, REQUEST, TERMS)
    framed = await encode_prompt(beginning, replace(REQUEST, add_special_tokens=True), TERMS)
    assert framed.ids == (*beginning.tokenizer.wrapping.prefix, *bare.ids)
