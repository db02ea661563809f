"""Shared by the engines that compute with numpy: safetensors files, matrix products,
and the batching of embeddings.

Safetensors files are read as float32 without the safetensors library. Format: 8 bytes
length of the header (little-endian), the header as JSON, the data
(https://huggingface.co/docs/safetensors). Every offset is checked before it is used.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import exp, prod
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..core.embeddings import EmbedRequest, EmbeddingInfo, Embeddings
from ..core.engine import Health
from ..core.errors import EngineError, Overloaded

TensorLayout: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype, as safetensors names it, and shape of each tensor."""

_BYTES_PER_NUMBER = {"BF16": 2, "F16": 2, "F32": 4}


class _Entry(Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _OnDisk:
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.size = path.stat().st_size
        self._path = path

    def read(self, begin: int, count: int) -> NDArray[np.uint8]:
        return np.fromfile(self._path, np.uint8, count, offset=begin)


class _InMemory:
    """A safetensors file in memory."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, begin: int, count: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._data[begin : begin + count], np.uint8)


_File = _OnDisk | _InMemory


class Tensors:
    """The tensors of safetensors files. Each is taken once; `check_all_used` reports
    unused ones.
    """

    def __init__(self, source: Path | Sequence[bytes]) -> None:
        """Read the headers. Raises EngineError, OSError.

        source: a directory of *.safetensors, one such file, or the contents of several
            files.
        """
        if not isinstance(source, Path):
            files: Sequence[_File] = [
                _InMemory(f"file {number}", data) for number, data in enumerate(source, start=1)
            ]
            self._name = "what was sent"
        else:
            paths = [source] if source.is_file() else sorted(source.glob("*.safetensors"))
            files = [_OnDisk(path) for path in paths]
            self._name = str(source)
        # Headers only: a tensor is read when it is taken, so that the checkpoint is
        # never in memory as a whole.
        self._remaining: dict[str, tuple[_File, int, _Entry]] = {}
        for file in files:
            start, entries = _read_header(file)
            duplicate = next((name for name in entries if name in self._remaining), None)
            if duplicate is not None:
                raise EngineError(f"{self._name} contains {duplicate} twice")
            self._remaining.update((name, (file, start, entry)) for name, entry in entries.items())
        if not self._remaining:
            raise EngineError(f"{self._name} contains no safetensors file")

    def __contains__(self, name: str) -> bool:
        return name in self._remaining

    @property
    def layout(self) -> TensorLayout:
        """The tensors that have not been taken."""
        return {name: (entry.dtype, entry.shape) for name, (_, _, entry) in self._remaining.items()}

    def take(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return the tensor of this name as float32; EngineError if it is missing or
        has another shape.
        """
        if name not in self._remaining:
            raise EngineError(f"{self._name} contains no tensor {name}")
        file, start, entry = self._remaining.pop(name)
        if entry.dtype not in _BYTES_PER_NUMBER:
            raise EngineError(
                f"{file.name}: {name} has dtype {entry.dtype}; supported are "
                f"{', '.join(_BYTES_PER_NUMBER)}"
            )
        if entry.shape != shape:
            raise EngineError(f"{file.name}: {name} has shape {entry.shape}, not {shape}")
        raw = file.read(start + entry.data_offsets[0], prod(shape) * _BYTES_PER_NUMBER[entry.dtype])
        match entry.dtype:
            case "BF16":
                # A bfloat16 is the upper half of a float32.
                numbers = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case "F16":
                numbers = raw.view("<f2").astype(np.float32)
            case _:
                numbers = raw.view("<f4").astype(np.float32, copy=False)
        return numbers.reshape(shape)

    def drop(self, name: str) -> None:
        """Mark a tensor as deliberately unused."""
        self._remaining.pop(name, None)

    def drop_all(self, prefix: str) -> None:
        """Mark all tensors with this prefix as deliberately unused."""
        for name in [name for name in self._remaining if name.startswith(prefix)]:
            self.drop(name)

    def check_all_used(self) -> None:
        """Raise EngineError if a tensor was not taken: the model has parts that this
        engine does not compute.
        """
        if self._remaining:
            raise EngineError(
                f"{self._name} contains unexpected tensors: {sorted(self._remaining)[:4]}"
            )


def _read_header(file: _File) -> tuple[int, dict[str, _Entry]]:
    # A file of less than 8 bytes is padded to an impossible length, which the check
    # below rejects.
    (length,) = struct.unpack("<Q", file.read(0, 8).tobytes().ljust(8, b"\xff"))
    if length > file.size - 8:
        raise EngineError(
            f"{file.name} is not a safetensors file: its header would be {length} bytes long"
        )
    raw = file.read(8, length).tobytes()
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        parts.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(part, type=_Entry) for name, part in parts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{file.name} is not a safetensors file: {error}") from error
    for name, entry in entries.items():
        size = file.size - 8 - length
        begin, end = entry.data_offsets
        # Other dtypes have no checked size: they are never read.
        width = _BYTES_PER_NUMBER.get(entry.dtype)
        if not (
            0 <= begin <= end <= size
            and (width is None or end - begin == prod(entry.shape) * width)
        ):
            raise EngineError(f"{file.name}: {name} is not at the offset in the header")
    return 8 + length, entries


# Matrix products whose rows are bitwise independent of the number of rows in the batch.

Floats = NDArray[np.float32]

ROWS = 8
"""Batches are padded to a multiple of this."""
CANDIDATES = (128, 32, 8, 4, 2, 1)
"""Block sizes to try, in rows."""
_MAX_TRIAL_WORK = 1 << 33
"""Limit of multiply-adds in a trial: large models settle for a smaller block."""


def multiply(rows: Floats, matrix: Floats, block: int) -> Floats:
    """Compute `rows @ matrix` over the last two axes, in calls of at most `block` rows.

    The number of rows is a multiple of the `unit` for which the block was found.
    Leading axes broadcast.
    """
    count, inner = rows.shape[-2:]
    if count <= block:
        return rows @ matrix
    full_rows = count - count % block
    blocks = (
        rows[..., :full_rows, :].reshape(*rows.shape[:-2], full_rows // block, block, inner)
        @ matrix[..., None, :, :]
    )
    full = blocks.reshape(*blocks.shape[:-3], full_rows, matrix.shape[-1])
    if full_rows == count:
        return full
    return np.concatenate((full, rows[..., full_rows:, :] @ matrix), axis=-2)


class BlockSizes:
    """Block sizes for row-independent products, found by trial. Every shape is tried
    once.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, ...], int] = {}

    def find_block_size(self, matrix: Floats, unit: int) -> int:
        """Find the block size for matrices of this shape and layout, and row counts
        that are multiples of unit.
        """
        key = (*matrix.shape, *matrix.strides, unit)
        if key not in self._sizes:
            self._sizes[key] = find_largest_block(
                lambda rows: rows @ matrix, matrix.shape[0], matrix.shape[1], unit
            )
        return self._sizes[key]


class Linear:
    """rows @ weight + bias for multiples of ROWS rows; a result row does not depend on
    the number of rows.
    """

    def __init__(self, weight: Floats, block_sizes: BlockSizes, bias: Floats | None = None) -> None:
        """weight: [inner, outer]."""
        # BLAS uses other kernels for a transposed layout, which would need a block size
        # of their own.
        self._weight = np.ascontiguousarray(weight)
        self._bias = bias
        self._block = block_sizes.find_block_size(self._weight, ROWS)

    def __call__(self, rows: Floats) -> Floats:
        product = multiply(rows, self._weight, self._block)
        if self._bias is not None:
            product += self._bias
        return product


def find_largest_block(
    product: Callable[[Floats], Floats], inner: int, outer: int, unit: int
) -> int:
    """Find the largest candidate for which `product` computes all rows alike in every
    call that `multiply` may make.

    product: maps rows of `inner` numbers to `outer` numbers, by a fixed matrix. It is
        tried on equal rows, which must give equal results: a different order of
        summation shows in some of the columns.
    """
    # A fixed seed, so that every start finds the same block and computes the same bits.
    row: Floats = np.random.default_rng(0).standard_normal((1, inner), np.float32)
    for block in CANDIDATES[:-1]:
        counts = range(unit, block + 1, unit) if block >= unit else (block,)
        if block > unit and sum(counts) * inner * outer > _MAX_TRIAL_WORK:
            continue
        expected = product(np.repeat(row, counts[0], axis=0))[:1]
        if all(
            bool((product(np.repeat(row, count, axis=0)) == expected).all()) for count in counts
        ):
            return block
    return CANDIDATES[-1]


def round_up(count: int, unit: int) -> int:
    """Return the next multiple of unit."""
    return -(-count // unit) * unit


# Shared by the embedding engines: batching of the inputs of concurrent calls on one
# thread, and the last step of every vector (truncate, normalize, encode). Independent
# of the model.

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T, R]):
    """The inputs of one call and their results."""

    def __init__(self, inputs: Sequence[T]) -> None:
        self.inputs = inputs
        self.results: list[R] = []
        self.next_index = 0
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[R]] = self.loop.create_future()
        self.is_finished = False


class Batcher(Generic[T, R]):
    """A worker thread that computes batches of inputs.

    compute: maps inputs to as many results, in order; called on the thread.
    size: returns an input's number of tokens.
    max_batch_tokens: maximum tokens of a batch; a larger input is computed alone.
    max_waiting: maximum number of queued calls; another one raises Overloaded.
    """

    def __init__(
        self,
        compute: Callable[[list[T]], list[R]],
        size: Callable[[T], int],
        *,
        max_batch_tokens: int = 4096,
        max_waiting: int = 1024,
        name: str = "batcher",
    ) -> None:
        self._compute = compute
        self._size = size
        self._max_batch_tokens = max_batch_tokens
        self._max_waiting = max_waiting
        self._name = name
        self._calls: deque[_Call[T, R]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop after the current batch; pending calls fail with EngineError."""
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(thread.join)
        # The thread has ended, so no lock is needed.
        for call in list(self._calls):
            _complete_call(call, EngineError("The engine is shutting down."))
        self._calls.clear()

    def health(self) -> Health:
        if self._thread is None:
            return Health(ready=False, reason="the engine is not running")
        if not self._thread.is_alive():
            return Health(ready=False, reason="the engine's thread has died", failed=True)
        return Health(running=len(self._calls))

    async def run(self, inputs: Sequence[T]) -> list[R]:
        """Compute the results, in the order of the inputs. Raises Overloaded,
        EngineError. Cancelling drops remaining inputs.
        """
        if self._thread is None:
            raise EngineError("The engine is not running.")
        if len(self._calls) >= self._max_waiting:
            raise Overloaded(f"{len(self._calls)} calls are already queued; retry later.")
        if not inputs:
            return []
        call: _Call[T, R] = _Call(inputs)
        with self._changed:
            self._calls.append(call)
            self._changed.notify()
        try:
            return await call.done
        finally:
            call.is_finished = True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                batch = self._next_batch()
            try:
                results = self._compute([input for _, input in batch]) if batch else []
            # The thread has to survive whatever a model raises, or all later calls
            # would wait forever.
            except BaseException:
                log.exception("a batch failed")
                for call in dict.fromkeys(call for call, _ in batch):
                    _complete_call(call, EngineError("The engine failed while computing a batch."))
                continue
            # A call's inputs are computed in order, so its results arrive in order.
            for (call, _), result in zip(batch, results, strict=True):
                call.results.append(result)
                if len(call.results) == len(call.inputs):
                    _complete_call(call, None)

    def _next_batch(self) -> list[tuple[_Call[T, R], T]]:
        """Collect the next batch: one input of each call in turn, until it is full."""
        batch: list[tuple[_Call[T, R], T]] = []
        size = 0
        while self._calls:
            call = self._calls.popleft()
            # The call was cancelled, or an earlier input of it failed.
            if call.is_finished:
                continue
            input = call.inputs[call.next_index]
            size += self._size(input)
            # An input larger than the limit is computed alone.
            if batch and size > self._max_batch_tokens:
                self._calls.appendleft(call)
                break
            batch.append((call, input))
            call.next_index += 1
            if call.next_index < len(call.inputs):
                self._calls.append(call)
        return batch


def _complete_call(call: _Call[T, R], error: EngineError | None) -> None:
    call.is_finished = True
    try:
        call.loop.call_soon_threadsafe(_set_result, call, error)
    except RuntimeError:
        """The loop is closed: no caller is left."""


def _set_result(call: _Call[T, R], error: EngineError | None) -> None:
    # The caller may have been cancelled after the thread had completed the call.
    if call.done.done():
        return
    if error is None:
        call.done.set_result(call.results)
    else:
        call.done.set_exception(error)


def build_embeddings(
    vectors: Sequence[NDArray[np.float32]], request: EmbedRequest, info: EmbeddingInfo
) -> Embeddings:
    """Build the embeddings. vectors: the pooled vectors at full length, one per input
    of the request.
    """
    dimensions = request.dimensions or info.dimensions
    normalize = info.normalized if request.normalize is None else request.normalize
    packed: list[bytes] = []
    for vector in vectors:
        values = vector[:dimensions]
        if normalize:
            # In double precision, so that the length is 1 to the last bit that float32
            # has.
            doubles = values.astype(np.float64)
            length = np.sqrt(doubles @ doubles)
            # A zero vector has no direction and stays unchanged.
            values = (doubles / length).astype(np.float32) if length > 0 else values
        packed.append(values.astype("<f4", copy=False).tobytes())
    return Embeddings(tuple(packed), dimensions, sum(map(len, request.inputs)))


def compute_sigmoid(number: float) -> float:
    # Neither form overflows. The second keeps the digits of small results, which rank
    # irrelevant documents.
    return 1 / (1 + exp(-number)) if number >= 0 else exp(number) / (1 + exp(number))
