"""Checks of the list of models."""

from __future__ import annotations

from ..check_catalog import Area
from ..error_bodies import check_openai_error
from ..rules.json_values import require
from ..session import Session

MODELS = Area(
    "models", claims=("models",), source="https://platform.openai.com/docs/api-reference/models"
)


@MODELS.check("`GET /v1/models` lists the model with `id`, `object`, `created` and `owned_by`.")
async def list_form(s: Session) -> None:
    exchange = await s.get("/v1/models")
    require(exchange.status == 200, f"status {exchange.status}")
    page = exchange.json()
    require(page.get("object") == "list", f"object is {page.get('object')!r}")
    for model in page["data"]:
        require(model["id"] and model["object"] == "model", f"an entry is {model}")
        require(
            isinstance(model["created"], int) and isinstance(model["owned_by"], str),
            f"an entry is {model}",
        )
    names = [model["id"] for model in page["data"]]
    require(s.model in names, f"{s.model!r} is not in the list")
    require(len(set(names)) == len(names), f"duplicate models: {names}")


@MODELS.check("`GET /v1/models/{id}` returns the model.", except_for=("vllm",))
async def retrieve(s: Session) -> None:
    exchange = await s.get(f"/v1/models/{s.model}")
    require(exchange.status == 200, f"status {exchange.status}")
    model = exchange.json()
    require((model["id"], model["object"]) == (s.model, "model"), f"the model is {model}")


@MODELS.check(
    "`GET /v1/models/{id}` returns 404 and an error body for an unknown model.",
    except_for=("vllm",),
)
async def unknown(s: Session) -> None:
    exchange = await s.get("/v1/models/no-such-model")
    require(exchange.status == 404, f"status {exchange.status}")
    check_openai_error(exchange.json())


@MODELS.check(
    "The model list reports the context length of a model.", level="should", except_for=("openai",)
)
async def context_length(s: Session) -> None:
    models = (await s.get("/v1/models")).json()["data"]
    names = ("max_model_len", "context_length", "context_window", "max_input_tokens", "meta")
    require(
        any(model.get(name) for model in models for name in names),
        f"none of the fields {names} in {str(models)[:300]}",
    )
