"""Whether a model sees with its pages what it sees by itself: two images in one prompt, cut within each of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from itertools import pairwise

import numpy as np

from ...core.engine import TokenRequest
from ...core.errors import EngineError
from ..batching import BLOCK_SIZE, Chunk, seeded
from ..batching.sequence import Sequence as Running
from .backend import Network, torch
from .model import Floats, TransformersModel
from .paged import attention
from .sight import on_device
from .vision import Inputs, Processor, TransformersVision, decoded

_SIZES = ((64, 48), (32, 96))
"""Width and height of each."""


def check_sight(
    model: TransformersModel, network: Network, processor: Processor, vision: TransformersVision, *, tolerance: float
) -> None:
    """tolerance: of the largest logit. Raises EngineError. The network's attention is paged afterwards."""
    files = [_drawn(*size) for size in _SIZES]
    try:
        texts, inputs = processor.read([decoded(file) for file in files])
        ids = _prompt(processor, texts)
        read = vision.read(files)
        if [image.text for image in read] != texts:
            raise EngineError("the result for an image depends on other images")
        images = vision.place(ids, read)
        cuts = [0, *((image.begin + image.end) // 2 for image in images), len(ids)]
        request = TokenRequest(id="see", prompt=tuple(ids), max_tokens=1, images=images)
        attention(network, paged=False)
        shown = [int(any(image.begin <= place < image.end for image in images)) for place in range(len(ids))]
        given = {name: on_device(network, tensor) for name, tensor in inputs.items()}
        expected = _by_itself(network, ids, shown, given, [cut - 1 for cut in cuts[1:]])
        attention(network, paged=True)
        found = _in_pieces(model, request, cuts)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError) as error:
        raise EngineError(f"its vision cannot be batched: {error}") from error
    if not np.abs(found - expected).max() <= tolerance * np.abs(expected).max():
        raise EngineError("its vision cannot be batched: its output with paged attention differs")


def _drawn(width: int, height: int) -> bytes:
    """A picture of its own, the same every time, as a file."""
    pillow = import_module("PIL.Image")
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = BytesIO()
    pillow.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _prompt(processor: Processor, texts: Sequence[str]) -> list[int]:
    first, second = texts
    return processor.tokenizer(f"a{first}b{second}c", add_special_tokens=False)["input_ids"]


def _by_itself(network: Network, ids: list[int], shown: list[int], inputs: Inputs, rows: list[int]) -> Floats:
    """shown: 1 where an image is, for models that want to be told."""
    place = {"device": network.device}
    if hasattr(network.model, "get_rope_index"):
        inputs = {**inputs, "mm_token_type_ids": torch.tensor([shown], **place)}
    with torch.inference_mode():
        kept = torch.tensor(rows, **place)
        made = network(input_ids=torch.tensor([ids], **place), use_cache=False, logits_to_keep=kept, **inputs)
    return made.logits[0].float().cpu().numpy()


def _in_pieces(model: TransformersModel, request: TokenRequest, cuts: Sequence[int]) -> Floats:
    sequence = Running(0, request, vocab=model.vocab, max_model_len=len(request.prompt) + 1, draws=seeded)
    count = -(-len(request.prompt) // BLOCK_SIZE)
    sequence.blocks = list(range(1, count + 1))
    runner = model.runner(count + 1)
    rows = [runner.forward([Chunk(sequence, begin, end)]).last([0]) for begin, end in pairwise(cuts)]
    return np.concatenate(rows)
