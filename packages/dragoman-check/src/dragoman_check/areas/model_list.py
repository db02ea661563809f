"""Checks of the list of models."""

from __future__ import annotations

from ..error_bodies import check_openai_error
from ..rules.json_values import require
from ..session import Area, Session

MODELS = Area(
    "models", claims=("models",), source="https://platform.openai.com/docs/api-reference/models"
)


@MODELS.check("The list has the model, with id, object, created and owned_by.")
async def list_form(s: Session) -> None:
    exchange = await s.get("/v1/models")
    require(exchange.status == 200, f"status {exchange.status}")
    page = exchange.json()
    require(page.get("object") == "list", f"object is {page.get('object')!r}")
    for model in page["data"]:
        require(model["id"] and model["object"] == "model", f"a model is {model}")
        require(
            isinstance(model["created"], int) and isinstance(model["owned_by"], str),
            f"a model is {model}",
        )
    names = [model["id"] for model in page["data"]]
    require(s.model in names, f"{s.model!r} is not in the list")
    require(len(set(names)) == len(names), f"models are listed twice: {names}")


@MODELS.check("A model is returned by its id.", except_for=("vllm",))
async def retrieve(s: Session) -> None:
    exchange = await s.get(f"/v1/models/{s.model}")
    require(exchange.status == 200, f"status {exchange.status}")
    model = exchange.json()
    require((model["id"], model["object"]) == (s.model, "model"), f"it is {model}")


@MODELS.check("An unknown model is a 404 with an error body.", except_for=("vllm",))
async def unknown(s: Session) -> None:
    exchange = await s.get("/v1/models/no-such-model")
    require(exchange.status == 404, f"status {exchange.status}")
    check_openai_error(exchange.json())


@MODELS.check(
    "The list says how long a model's context is.", level="should", except_for=("openai",)
)
async def context_length(s: Session) -> None:
    models = (await s.get("/v1/models")).json()["data"]
    names = ("max_model_len", "context_length", "context_window", "max_input_tokens", "meta")
    require(
        any(model.get(name) for model in models for name in names),
        f"none of {names} in {str(models)[:300]}",
    )
