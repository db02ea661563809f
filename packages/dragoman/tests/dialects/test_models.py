"""The list of models satisfies both vendors' SDKs, and equals vLLM's in vLLM's profile."""

from __future__ import annotations

import json

from openai.pagination import SyncPage
from openai.types import Model

from dragoman.dialects.interfaces import Profile
from dragoman.dialects.model_list import ModelCard, render_model, render_model_list

CARD = ModelCard("org/tiny", 1700000000, max_model_len=1024)


def test_model_body_satisfies_openai_and_anthropic_sdks():
    assert (
        Model.model_validate_json(render_model(CARD, Profile.OPENAI), strict=True).id == "org/tiny"
    )
    assert json.loads(render_model(CARD, Profile.OPENAI)) == {
        "id": "org/tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "dragoman",
        "type": "model",
        "display_name": "org/tiny",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
        "max_input_tokens": 1024,
        "max_tokens": 1024,
        "max_model_len": 1024,
        "context_length": 1024,
        "context_window": 1024,
        "meta": {"n_ctx": 1024},
    }


def test_model_list_names_first_and_last_id():
    listed = render_model_list((CARD, ModelCard("b", 1)), Profile.OPENAI)
    assert [model.id for model in SyncPage[Model].model_validate_json(listed).data] == [
        "org/tiny",
        "b",
    ]
    body = json.loads(listed)
    assert (body["object"], body["has_more"], body["first_id"], body["last_id"]) == (
        "list",
        False,
        "org/tiny",
        "b",
    )


def test_empty_model_list_has_empty_data():
    body = json.loads(render_model_list((), Profile.OPENAI))
    assert (body["data"], body["first_id"]) == ([], None)


def test_vllm_profile_model_has_root_and_permission():
    """The keys of the recorded answer of vLLM 0.33 are all there."""
    body = json.loads(render_model(CARD, Profile.VLLM))
    assert set(body) >= {
        "id",
        "object",
        "created",
        "owned_by",
        "root",
        "parent",
        "max_model_len",
        "permission",
    }
    assert (body["root"], body["parent"]) == ("org/tiny", None)
    assert set(body["permission"][0]) == {
        "id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs",
        "allow_search_indices",
        "allow_view", "allow_fine_tuning", "organization", "group", "is_blocking",
    }  # fmt: skip
