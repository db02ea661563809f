"""Hugging Face's Text Embeddings Inference, which does not generate text."""

from __future__ import annotations

from msgspec import Struct

from ...core.encoder_requests import EncodingTask
from ...core.errors import EngineError
from .openai_kinds import CHAT_API
from .scores import encode_tei_rerank_requests
from .server_kind import ServerKind
from .upstream_models import ModelQueries, ModelTasks, UpstreamModel

_TASKS = {"embedding": EncodingTask.EMBEDDINGS, "reranker": EncodingTask.SCORING}


class _Info(Struct):
    model_id: str
    model_type: dict[str, object]
    max_input_length: int | None = None


def _find_model(
    model: str | None, tasks: ModelTasks | None, queries: ModelQueries
) -> UpstreamModel:
    # TEI's own routes are at the root, its OpenAI-compatible ones below `/v1`.
    url = f"{queries.base_url.removesuffix('/v1')}/info"
    info = queries.fetch(url, _Info, "describe a model as Text Embeddings Inference does")
    encoding = frozenset(task for name, task in _TASKS.items() if name in info.model_type)
    if tasks is None and not encoding:
        raise EngineError(
            f"{url}: the model neither embeds nor reranks: {', '.join(info.model_type)}"
        )
    return UpstreamModel(
        model or info.model_id, info.max_input_length, tasks or ModelTasks(False, encoding)
    )


TEI = ServerKind(
    name="tei",
    features=frozenset(),
    parameters=frozenset(),
    api=CHAT_API,
    encode_scores=encode_tei_rerank_requests,
    find_model=_find_model,
    generates=False,
    has_audio=False,
)
