"""A causal language model of the transformers library, as the engine wants it. Knows nothing of requests.

Only safetensors are read, nothing is fetched, and code that lies with a model runs only where that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import EngineError, Unsupported
from ..arrays.weights import Tensors
from ..batching import BLOCK_SIZE, Chunk
from .backend import Network, Tensor, library, torch
from .lora import LoraLayers
from .paged import Kernels, Pool, Step, kernels
from .quantizing import is_quantized, quantized_loading
from .renewal import free_accelerator, places_of, staged_weights
from .sight import TransformersSight
from .vision import sees

Floats = NDArray[np.float32]


class LoadOptions(Struct, frozen=True):
    """dtype: `auto` is what the checkpoint says, on a CPU without bfloat16 float32. device: `auto` takes an
    accelerator where there is one. trust_remote_code: run the Python that lies with the model. quantization: how to
    quantise its weights while they are loaded, see `quantizing`. attention_backend: as in `paged.kernels`.
    """

    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    quantization: str | None = None
    attention_backend: str = "auto"


class TransformersModel:
    """As `batching.Model`. Holds the weights; each runner has keys and values of its own.

    sight: what it sees with, once that has been tried.
    """

    def __init__(self, network: Network, attention_backend: str = "auto") -> None:
        self._network, self._kernels = network, kernels(attention_backend)
        self.lora = LoraLayers(network)
        self.sight: TransformersSight | None = None
        config = network.config.get_text_config()
        self._vocab: int = config.vocab_size
        self._max_positions: int = config.max_position_embeddings
        self._places = places_of(network)

    @property
    def vocab(self) -> int:
        return self._vocab

    @property
    def max_positions(self) -> int:
        return self._max_positions

    @property
    def device(self) -> str:
        return str(self._network.device)

    def renew(self, tensors: Tensors) -> Callable[[], None]:
        if is_quantized(self._network.config):
            raise Unsupported("The weights of a quantised model cannot be replaced.", param="weights")
        staged = staged_weights(self._places, tensors)

        def put() -> None:
            for place, value in staged:
                place.tensor.data = value.to(self._network.device)
            if self.sight:
                self.sight.forget()

        return put

    def discarding(self) -> Callable[[], None]:
        def discard() -> None:
            for place in self._places:
                place.tensor.data = place.tensor.data.new_empty(0)
            if self.sight:
                self.sight.forget()
            free_accelerator(self._network.device)

        return discard

    def runner(self, num_blocks: int) -> TransformersRunner:
        pool = Pool(num_blocks, self._network.device)
        return TransformersRunner(self._network, pool, self._kernels, self.lora, self.sight)


class TransformersRunner:
    """As `batching.Runner`."""

    def __init__(
        self,
        network: Network,
        pool: Pool,
        kernels: Kernels,
        lora: LoraLayers,
        sight: TransformersSight | None = None,
    ) -> None:
        self._network, self.pool, self._kernels = network, pool, kernels
        self._lora, self._sight = lora, sight

    def close(self) -> None:
        self.pool = Pool(0, self._network.device)
        free_accelerator(self._network.device)

    def forward(self, chunks: Sequence[Chunk]) -> LogitRows:
        rows = sorted(_wanted(chunks))
        new = [block for chunk in chunks for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]]
        with torch.inference_mode(), self._kernels():
            self.pool.wipe(new)
            self._lora.use(chunks)
            step = Step(chunks, self.pool, self._network.device)
            logits = self._network(
                **self._given(step, chunks),
                use_cache=False,
                logits_to_keep=torch.tensor(rows, device=self._network.device),
                step=step,
            ).logits[0]
        starts = np.cumsum([0, *(chunk.num_tokens for chunk in chunks)]).tolist()
        return LogitRows(logits, {row: place for place, row in enumerate(rows)}, starts)

    def save(self, block: int) -> bytes:
        return self.pool.save(block)

    def restore(self, block: int, contents: bytes) -> None:
        self.pool.restore(block, contents)

    def _given(self, step: Step, chunks: Sequence[Chunk]) -> dict[str, Tensor]:
        """What is computed, and the positions of it."""
        sight = self._sight
        if sight is None:
            return {"input_ids": step.ids, "position_ids": step.positions}
        return {
            "inputs_embeds": sight.embeddings(step.ids, chunks),
            "position_ids": sight.positions(chunks, step.positions),
        }


class LogitRows:
    """As `batching.States`, for the rows that somebody wants. starts: of each chunk's rows, and where they end."""

    def __init__(self, logits: Tensor, places: dict[int, int], starts: list[int]) -> None:
        self._logits, self._places, self._starts = logits, places, starts

    def last(self, places: Sequence[int]) -> Floats:
        return self._take([self._starts[place + 1] - 1 for place in places])

    def span(self, place: int, begin: int, end: int) -> Floats:
        start = self._starts[place]
        return self._take(range(start + begin, start + end))

    def _take(self, rows: Sequence[int]) -> Floats:
        wanted = self._logits[[self._places[row] for row in rows]]
        return wanted.float().cpu().numpy().copy()


def _wanted(chunks: Sequence[Chunk]) -> set[int]:
    """Rows whose logits are asked for: where a token is due, and all of a prompt that is scored."""
    rows: set[int] = set()
    start = 0
    for chunk in chunks:
        if chunk.sequence.prompt_scores is not None:
            rows.update(range(start, start + chunk.num_tokens))
        start += chunk.num_tokens
        rows.add(start - 1)
    return rows


def load_network(directory: Path, options: LoadOptions) -> Network:
    """The model in a directory, in evaluation mode on its device. Raises EngineError for what cannot be served."""
    library.utils.logging.disable_progress_bar()
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because they may run code"
        )
    device = _device(options.device)
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": options.trust_remote_code}
    try:
        config = library.AutoConfig.from_pretrained(directory, **local)
        placing = quantized_loading(config, options.quantization, options.dtype, device)
        kind = library.AutoModelForImageTextToText if sees(config) else library.AutoModelForCausalLM
        network = kind.from_pretrained(
            directory,
            config=config,
            dtype=options.dtype,
            use_safetensors=True,
            attn_implementation="sdpa",
            **placing,
            **local,
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise EngineError(f"transformers cannot load {directory}: {error}") from error
    # What is quantised cannot be moved, and is where it belongs already.
    return network.eval() if placing else network.to(device).eval()


def _device(asked: str) -> str:
    if asked == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=asked)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise EngineError(f"the device {asked!r} cannot be used: {str(error).splitlines()[0]}") from None
    return asked
