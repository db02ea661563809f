"""The llama.cpp process: `python -m dragoman.engines.llamacpp_child`, with its settings
as JSON on standard input.

It is a separate process because llama.cpp aborts its process on internal errors. It
runs while its standard input is open, and prints one line when the model is loaded.
Requests arrive at a Unix socket.

It imports little, because a start waits for it: not the package of the engine, nor
numpy.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

READY = "dragoman: ready"
CHILD_VARIABLES = {"PYTHONMALLOC": "malloc"}
"""Environment variables of the process. With `malloc`, Python's objects are on the
heap, and not in the mappings whose zero pages `return_untouched_memory` returns.
"""

_MIN_MAPPING_BYTES = 16 << 20
"""Smaller mappings are heaps and stacks, which other threads write at any time."""
_CHUNK_BYTES = 1 << 20
# Device 00:00, inode 0 and no name mark an anonymous mapping, and `p` a private one.
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 *$", re.MULTILINE)
_MAPS = Path("/proc/self/maps")
_MEMORY = Path("/proc/self/mem")
_ZEROS = bytes(_CHUNK_BYTES)


class LaunchSettings(Struct, frozen=True):
    """Settings of the llama.cpp process.

    context: tokens of all sequences together.
    batch, ubatch: maximum tokens of one logical and one physical batch, as in
        llama.cpp.
    unified: all sequences share one KV cache; otherwise each has an equal part.
    kv_type: type of the cache's numbers, as in ggml.
    gpu_layers: number of layers on the GPU; -1 is llama.cpp's choice.
    threads: number of CPU threads; None is llama.cpp's choice.
    flash_attention: llama.cpp uses it where it can.
    pooling: llama.cpp's llama_pooling_type for an embedding model; None for a
        generative one.
    mmproj: path of the multimodal projector.
    marker: image placeholder in texts.
    socket: path of the Unix socket to listen on.
    key: API key that requests must send.
    """

    path: str
    context: int
    sequences: int
    batch: int
    ubatch: int
    unified: bool = False
    kv_type: Literal["F16", "BF16", "F32"] = "F16"
    gpu_layers: int = -1
    threads: int | None = None
    flash_attention: bool = False
    pooling: int | None = None
    mmproj: str | None = None
    marker: str = ""
    socket: str = ""
    key: str = ""


def return_untouched_memory() -> int:
    """Return the zero pages of large mappings to the system, and the number of bytes as
    the result; 0 where the system does not support it.

    llama.cpp clears its whole KV cache at load time, which makes it resident. A private
    anonymous page that is all zeros reads as zeros again after it was returned to the
    system, so the process is not affected, and the KV cache takes only as much memory
    as sequences have filled.

    No other thread may write to a large mapping meanwhile: call it before the first
    request. Nor may Python's own objects be in one: `CHILD_VARIABLES` keep them on the
    heap.
    """
    if not _MAPS.exists() or not hasattr(mmap, "MADV_DONTNEED"):
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise.restype = ctypes.c_int
    returned = 0
    # Read into one buffer: new memory for each chunk would take as long as the reading.
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with contextlib.suppress(OSError), _MEMORY.open("rb", buffering=0) as memory:
        for mapping in _MAPPING.finditer(_MAPS.read_text()):
            begin = int(mapping[1], 16)
            end = int(mapping[2], 16)
            if end - begin < _MIN_MAPPING_BYTES:
                continue
            for address in range(begin, end, _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, end - address)
                try:
                    # Read from the file: a mapping that has ended is an OSError here,
                    # not a crash of the process.
                    n_read = os.preadv(memory.fileno(), [view[:size]], address)
                except OSError:
                    continue
                if (
                    n_read == size
                    and buffer.startswith(_ZEROS[:size])
                    and advise(address, size, mmap.MADV_DONTNEED) == 0
                ):
                    returned += size
    return returned


def main() -> int:
    # Settings arrive on stdin, so that they stay out of the process list.
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchSettings)
    if launch.marker:
        os.environ["LLAMA_MEDIA_MARKER"] = launch.marker
    try:
        xllamacpp: Any = import_module("xllamacpp")
    except ImportError as error:
        print(  # noqa: T201 - its report
            f"{error}; this engine needs `pip install 'dragoman[llamacpp]'`",
            file=sys.stderr,
        )
        return 1
    try:
        server = xllamacpp.Server(build_parameters(xllamacpp, launch))
    except (RuntimeError, ValueError) as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 - its report
        return 1
    # Before READY, because no request may write to the memory meanwhile.
    return_untouched_memory()
    print(READY, flush=True)  # noqa: T201 - the parent waits for this line
    # Returns when the parent closes the pipe or dies, so that the server does not
    # outlive it.
    sys.stdin.buffer.read()
    del server
    return 0


def build_parameters(xllamacpp: Any, launch: LaunchSettings) -> Any:  # noqa: ANN401 - the library has no types
    """Build llama.cpp's parameters. It listens only on the Unix socket and requires the
    key.
    """
    params = xllamacpp.CommonParams()
    params.model.path = launch.path
    params.hostnames = [launch.socket]
    params.api_keys = [launch.key]
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.verbosity = 1
    params.warmup = False
    params.fit_params = False
    params.use_jinja = False
    params.chat_template = "chatml"
    params.n_ctx = launch.context
    params.n_parallel = launch.sequences
    params.kv_unified = launch.unified
    params.n_batch = launch.batch
    params.n_ubatch = launch.ubatch
    # The engine assigns slots, so that cached prompts are never shared between cache
    # salts.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ctx_shift = False
    # Every open completion occupies a thread; four more serve short requests, such as
    # `/tokenize`.
    params.n_threads_http = launch.sequences + 4
    params.n_gpu_layers = launch.gpu_layers
    has_gpu = any("GPU" in device["type"].name for device in xllamacpp.get_device_info())
    if not launch.flash_attention and (launch.gpu_layers == 0 or not has_gpu):
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kv_type = xllamacpp.ggml_type[f"GGML_TYPE_{launch.kv_type}"]
    params.cache_type_k = kv_type
    params.cache_type_v = kv_type
    if launch.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = launch.threads
    if launch.pooling is not None:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type(launch.pooling)
    if launch.mmproj is not None:
        params.mmproj.path = launch.mmproj
        params.mmproj_use_gpu = launch.gpu_layers != 0
        # llama.cpp treats other files as video and would start ffmpeg; this directory
        # contains none.
        params.video_ffmpeg_bin_dir = str(Path(launch.socket).parent)
    return params


if __name__ == "__main__":
    sys.exit(main())
