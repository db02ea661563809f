"""Decodes audio files to mono samples of the rate that a model needs.

WAV files with PCM samples need no library; soundfile, if it is installed, reads FLAC,
Ogg, MP3 and other WAV files.
"""

from __future__ import annotations

import io
import math
import wave
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import RequestError
from ..core.transcription import AudioFile

Samples = NDArray[np.float32]

MAX_SECONDS = 2 * 3600
"""Limit of a file's length: its samples and features are in memory."""
_MAX_VALUES = MAX_SECONDS * 96_000 * 2
"""Limit of a file's samples in all channels, which bounds the time of decoding: a
compressed file of a megabyte can hold hours of silence in many channels.
"""
_MIN_RATE = 4000
_MAX_RATE = 384_000
"""Limits of a file's rate, in Hz: the filter of a conversion grows with it."""
_MAX_PERIOD = 640
"""Limit of the numerator and the denominator of a conversion between rates: the first
is the number of filters, the second adds to their length. All usual rates are below it:
11025 Hz to 16 kHz is 640/441.
"""
_ZERO_CROSSINGS = 16
"""Width of the filter, in zero crossings of the sinc on each side."""
_BLOCK_VALUES = 2**18
"""Samples of all channels that are decoded at once."""
_UNKNOWN_SIZE = 0x7FFF_0000
"""Size of a WAV file's data from which it is that of a program which writes to a pipe,
and so does not know the length.
"""
_UNKNOWN_FRAMES = 2**40
"""Length from which it is that of a file whose header has none, such as one that an
encoder wrote to a pipe.
"""


def decode_audio(audio: AudioFile, rate: int) -> Samples:
    """Decode a file to samples from -1 to 1 with this rate, in Hz.

    Raises:
        RequestError: the file is invalid, too long, or needs another library.
    """
    own_rate, blocks = _open_wav(audio.content) or _open_with_library(audio)
    resampler = _Resampler(own_rate, rate)
    # Joined in place: a list of blocks would be copied once more.
    samples = bytearray()
    for block in blocks:
        samples += resampler.feed(block).tobytes()
    samples += resampler.close().tobytes()
    return np.frombuffer(samples, np.float32)


def _open_wav(content: bytes) -> tuple[int, Iterator[Samples]] | None:
    """Open a WAV file with PCM samples; None for another format.

    Returns:
        The rate, and the samples in blocks, mixed to mono.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    try:
        file = wave.Wave_read(io.BytesIO(content))
    except wave.Error as error:
        if "unknown format" in str(error):
            return None
        raise _invalid(f"not a valid WAV file: {error}") from None
    except (EOFError, ValueError, RuntimeError, OverflowError):
        raise _invalid("the WAV file is truncated or malformed") from None
    rate = file.getframerate()
    channels = file.getnchannels()
    # The header may announce more than there is.
    frames = min(file.getnframes(), len(content) // (channels * file.getsampwidth()))
    _check_length(frames, rate, channels)
    return rate, _read_wav(file)


def _read_wav(file: wave.Wave_read) -> Iterator[Samples]:
    width = file.getsampwidth()
    channels = file.getnchannels()
    frame_size = width * channels
    n_missing = file.getnframes()
    is_unknown = n_missing * frame_size >= _UNKNOWN_SIZE - frame_size
    while data := file.readframes(max(1, _BLOCK_VALUES // channels)):
        n_frames = len(data) // frame_size
        n_missing -= n_frames
        values = _read_pcm(data[: n_frames * frame_size], width)
        yield values.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    if n_missing and not is_unknown:
        raise _invalid("the WAV file is truncated: its header announces more samples")


def _read_pcm(data: bytes, width: int) -> Samples:
    match width:
        case 1:
            return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
        case 2:
            return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)
        case 3:
            # The upper three bytes of four.
            padded = np.zeros((len(data) // 3, 4), np.uint8)
            padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        case 4:
            return np.frombuffer(data, "<i4").astype(np.float32) / np.float32(2**31)
        case _:
            raise _invalid(f"samples of {8 * width} bits are not supported")


def _open_with_library(audio: AudioFile) -> tuple[int, Iterator[Samples]]:
    """Open a file of another format. Returns: as `_open_wav`."""
    if find_spec("soundfile") is None:
        raise _invalid(
            "only WAV files with PCM samples are supported; for FLAC, Ogg and MP3 install "
            "soundfile on the server (pip install soundfile)"
        )
    soundfile: Any = import_module("soundfile")
    try:
        file = soundfile.SoundFile(io.BytesIO(audio.content))
    except soundfile.SoundFileError:
        raise _build_library_error() from None
    rate: int = file.samplerate
    # soundfile seeks after each read, which fails without a length.
    if file.frames >= _UNKNOWN_FRAMES:
        raise _invalid("its header does not tell its length")
    _check_length(file.frames, rate, file.channels)
    return rate, _read_with_library(soundfile, file)


def _read_with_library(soundfile: Any, file: Any) -> Iterator[Samples]:  # noqa: ANN401 - untyped
    frames = max(1, _BLOCK_VALUES // file.channels)
    with file:
        while True:
            try:
                block: Samples = file.read(frames, dtype="float32", always_2d=True)
            except soundfile.SoundFileError:
                raise _build_library_error() from None
            if not len(block):
                return
            yield block.mean(axis=1, dtype=np.float32)


def _build_library_error() -> RequestError:
    return _invalid("not a valid audio file in WAV, FLAC, Ogg or MP3")


def _check_length(frames: int, rate: int, channels: int) -> None:
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise _invalid(f"its sample rate is {rate} Hz, not from {_MIN_RATE} to {_MAX_RATE} Hz")
    if frames > MAX_SECONDS * rate:
        raise _invalid(f"it is longer than {MAX_SECONDS} seconds")
    if frames * channels > _MAX_VALUES:
        raise _invalid(f"its channels have more than {_MAX_VALUES} samples; convert it to mono")


def _invalid(reason: str) -> RequestError:
    return RequestError(
        f"The audio file cannot be read: {reason}.", param="file", code="invalid_value"
    )


class _Resampler:
    """Converts samples to another rate, by a windowed sinc below both Nyquist
    frequencies.
    """

    def __init__(self, own_rate: int, rate: int) -> None:
        divisor = math.gcd(own_rate, rate)
        self._phases = rate // divisor
        self._step = own_rate // divisor
        if max(self._phases, self._step) > _MAX_PERIOD:
            raise _invalid(
                f"a sample rate of {own_rate} Hz is not supported; convert it to {rate} Hz"
            )
        cutoff = min(1.0, self._phases / self._step)
        self._width = math.ceil(_ZERO_CROSSINGS / cutoff)
        # Several periods at once if one is short: large matrices are multiplied fast.
        periods = max(1, 2 * self._width // self._step)
        self._phases *= periods
        self._step *= periods
        self._n_parts = math.ceil((2 * self._width + self._step) / self._step)
        # Column i is the filter of the i-th of the outputs for `step` inputs.
        inputs = np.arange(self._n_parts * self._step)[:, None] - self._width
        distance = inputs - np.arange(self._phases) * self._step / self._phases
        window = np.cos(np.clip(distance / self._width, -1, 1) * math.pi / 2) ** 2
        kernels = (np.sinc(distance * cutoff) * cutoff * window).astype(np.float32)
        self._kernels: Samples = np.hstack(np.split(kernels, self._n_parts))
        self._pending: Samples = np.zeros(self._width, np.float32)
        self._n_inputs = 0
        self._n_outputs = 0

    def feed(self, samples: Samples) -> Samples:
        """Return the outputs that need no further input."""
        if self._phases == self._step:
            return samples
        self._n_inputs += len(samples)
        self._pending = np.concatenate([self._pending, samples])
        n_rows = len(self._pending) // self._step
        n_complete = n_rows - self._n_parts + 1
        if n_complete <= 0:
            return np.zeros(0, np.float32)
        rows = self._pending[: n_rows * self._step].reshape(n_rows, self._step)
        # An output adds the products of its filter's parts with as many rows.
        products = (rows @ self._kernels).reshape(n_rows, self._n_parts, self._phases)
        outputs = products[:n_complete, 0].copy()
        for part in range(1, self._n_parts):
            outputs += products[part : part + n_complete, part]
        self._pending = self._pending[n_complete * self._step :]
        self._n_outputs += outputs.size
        return outputs.reshape(-1)

    def close(self) -> Samples:
        """Return the last outputs."""
        total = math.ceil(self._n_inputs * self._phases / self._step)
        missing = total - self._n_outputs
        return self.feed(np.zeros(self._n_parts * self._step, np.float32))[:missing]
