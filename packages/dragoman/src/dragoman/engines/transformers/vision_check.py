"""A self-check of vision at startup: paged logits must match the network's own.

The prompt has two images, each split across chunks.
"""

from __future__ import annotations

from collections import abc
from importlib import import_module
from inspect import signature
from io import BytesIO
from itertools import pairwise

import numpy as np

from ...core.errors import EngineError
from ...core.token_engine import TokenRequest
from ..batching import (
    BLOCK_SIZE,
    Chunk,
    build_rng,
)
from ..batching.sequence import Sequence
from ..image_decoding import decode_image
from .backend import Network, torch
from .paged_attention import set_attention
from .transformers_model import Floats, TransformersModel
from .vision import (
    TransformersVision,
    VisionInputs,
    VisionProcessor,
)
from .vision_encoder import move_to_device

_IMAGE_SIZES = ((64, 48), (32, 96))
"""Width and height of each test image, pixels."""
_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
"""Arguments of the library's models that are 1 at image tokens."""


def check_vision(
    model: TransformersModel,
    network: Network,
    processor: VisionProcessor,
    vision: TransformersVision,
    *,
    tolerance: float,
) -> None:
    """Check vision. Raises EngineError, or any exception of the library's code. On
    success the network's attention is paged afterwards.

    tolerance: relative to the largest logit.
    """
    files: list[bytes] = []
    for width, height in _IMAGE_SIZES:
        pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        file = BytesIO()
        import_module("PIL.Image").fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    texts, inputs = processor.process([decode_image(data) for data in files])
    first, second = texts
    ids: list[int] = processor.tokenizer(f"a{first}b{second}c", add_special_tokens=False)[
        "input_ids"
    ]
    prepared = vision.prepare(files)
    if [image.text for image in prepared] != texts:
        raise EngineError("the result for an image depends on other images")
    images = vision.locate(ids, prepared)
    boundaries = [0, *((image.begin + image.end) // 2 for image in images), len(ids)]
    request = TokenRequest(id="see", prompt=tuple(ids), max_tokens=1, images=images)
    set_attention(network, model.own_attention)
    model.long_rope.deactivate()
    network_inputs = {name: move_to_device(network, tensor) for name, tensor in inputs.items()}
    expected = _compute_image_reference(
        network, ids, network_inputs, [boundary - 1 for boundary in boundaries[1:]]
    )
    set_attention(network, model.paged_attention)
    actual = _compute_in_chunks(model, request, boundaries)
    if not np.abs(actual - expected).max() <= tolerance * np.abs(expected).max():
        raise EngineError("its vision cannot be batched: its output with paged attention differs")


def _compute_image_reference(
    network: Network, ids: list[int], inputs: VisionInputs, rows: list[int]
) -> Floats:
    """Compute the network's own logits of these rows, with the token types that the
    library's processor would pass: Gemma 3 attends causally without them.
    """
    tensor_options = {"device": network.device}
    image_token = network.config.image_token_id
    token_types = torch.tensor([[int(id == image_token) for id in ids]], **tensor_options)
    parameters = signature(network.forward).parameters
    names = [name for name in _TOKEN_TYPES if name in parameters]
    inputs = {**inputs, **dict.fromkeys(names, token_types)}
    with torch.inference_mode():
        logit_rows = torch.tensor(rows, **tensor_options)
        output = network(
            input_ids=torch.tensor([ids], **tensor_options),
            use_cache=False,
            logits_to_keep=logit_rows,
            **inputs,
        )
    return output.logits[0].float().cpu().numpy()


def _compute_in_chunks(
    model: TransformersModel, request: TokenRequest, boundaries: abc.Sequence[int]
) -> Floats:
    sequence = Sequence(
        0, request, vocab=model.vocab, max_model_len=len(request.prompt) + 1, rng_factory=build_rng
    )
    count = -(-len(request.prompt) // BLOCK_SIZE)
    sequence.blocks = list(range(1, count + 1))
    sequence.state_slot = 0 if model.has_state else None
    runner = model.build_runner(count + 1, num_state_slots=1 if model.has_state else 0)
    rows = [
        runner.forward([Chunk(sequence, begin, end)]).compute_last_logits([0])
        for begin, end in pairwise(boundaries)
    ]
    return np.concatenate(rows)
