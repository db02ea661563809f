"""Audio files: samples of every width and rate, and what cannot be read is an error that
names the file.
"""

from __future__ import annotations

import io
import tracemalloc
import wave
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.transcription import AudioFile
from dragoman.engines.audio_decoding import MAX_SECONDS, Samples, decode_audio

RATE = 16_000


def write_wav(samples: Samples, rate: int = RATE, width: int = 2, channels: int = 1) -> bytes:
    largest = 2 ** (8 * width - 1) - 1
    zero = 128 if width == 1 else 0
    numbers: list[int] = [round(float(sample) * largest) + zero for sample in samples]
    frames = [(number % 256**width).to_bytes(width, "little") * channels for number in numbers]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(b"".join(frames))
    return file.getvalue()


def build_tone(rate: int, seconds: float = 0.5, frequency: float = 440.0) -> Samples:
    times = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * times)).astype(np.float32)


def decode(content: bytes) -> Samples:
    return decode_audio(AudioFile(content, "a.wav"), RATE)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_samples_of_each_width_are_decoded(width: int, channels: int):
    tone = build_tone(RATE)
    decoded = decode(write_wav(tone, width=width, channels=channels))
    assert decoded.dtype == np.float32
    assert np.abs(decoded - tone).max() < 2 / 2 ** (8 * width - 1) + 1e-6


@pytest.mark.parametrize(
    "rate", [8000, 11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000]
)
def test_wav_of_other_rate_is_resampled(rate: int):
    decoded = decode(write_wav(build_tone(rate), rate, 4))
    expected = build_tone(RATE)
    assert abs(len(decoded) - len(expected)) <= 1
    # The filter has no samples before the first and after the last.
    inner = slice(400, 7600)
    assert np.abs(decoded[inner] - expected[inner]).max() < 2e-3


def test_wav_above_nyquist_frequency_is_filtered_out():
    decoded = decode(write_wav(build_tone(48_000, frequency=12_000.0), 48_000))
    assert np.abs(decoded[400:7600]).max() < 5e-3


def test_wav_of_unknown_length_is_read_to_its_end():
    content = write_wav(build_tone(RATE))
    start = content.index(b"data") + 4
    streamed = content[:start] + b"\xff\xff\xff\xff" + content[start + 4 :]
    assert len(decode(streamed)) == RATE // 2


def test_wav_of_many_blocks_equals_its_parts():
    tone = build_tone(44_100, 8.0)
    decoded = decode(write_wav(tone, 44_100, 2))
    assert len(decoded) == 8 * RATE
    inner = slice(400, 8 * RATE - 400)
    assert np.abs(decoded[inner] - build_tone(RATE, 8.0)[inner]).max() < 2e-3


def test_wav_with_many_channels_takes_memory_of_blocks():
    channels = 4000
    data = bytes(2) * channels * 2000
    with wave.open(file := io.BytesIO(), "wb") as writer:
        writer.setparams((channels, 2, RATE, 0, "NONE", ""))
        writer.writeframes(data)
    content = file.getvalue()
    tracemalloc.start()
    try:
        assert len(decode(content)) == 2000
        assert tracemalloc.get_traced_memory()[1] < len(content)
    finally:
        tracemalloc.stop()


WAV = write_wav(build_tone(RATE, 0.01))


def patch(offset: int, data: bytes) -> bytes:
    return WAV[:offset] + data + WAV[offset + len(data) :]


BROKEN = {
    "empty": b"",
    "text": b"Hello",
    "riff only": WAV[:12],
    "cut header": WAV[:30],
    "truncated": WAV[:-100],
    "0 Hz": patch(24, bytes(4)),
    "no channels": patch(22, bytes(2)),
    "no bits": patch(34, bytes(2)),
    "64 bits": patch(34, b"\x40\x00"),
    "odd rate": patch(24, (44_101).to_bytes(4, "little")),
    "highest rate": patch(24, b"\xff\xff\xff\xff"),
    "1 Hz": patch(24, b"\x01\x00\x00\x00"),
    "rate without usual ratio": patch(24, (383_975).to_bytes(4, "little")),
    "highest filter": patch(24, (2**31 - 640).to_bytes(4, "little")),
    "webm": b"\x1a\x45\xdf\xa3webm",
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_audio_names_file(name: str):
    with pytest.raises(RequestError, match="cannot be read") as raised:
        decode(BROKEN[name])
    assert raised.value.param == "file"


def test_wav_above_length_limit_is_rejected():
    with wave.open(file := io.BytesIO(), "wb") as writer:
        writer.setparams((1, 1, 4000, 0, "NONE", ""))
        writer.writeframes(bytes(4000 * (MAX_SECONDS + 1)))
    with pytest.raises(RequestError, match=f"longer than {MAX_SECONDS} seconds"):
        decode(file.getvalue())


def test_any_damaged_wav_header_is_error_or_samples():
    for offset in range(44):
        for byte in (0, 1, 0x7F, 0xFF):
            with suppress(RequestError):
                decode(patch(offset, bytes([byte])))


@pytest.mark.skipif(find_spec("soundfile") is not None, reason="soundfile reads these")
def test_other_container_names_library_to_install():
    with pytest.raises(RequestError, match="pip install soundfile"):
        decode(b"fLaC" + bytes(40))
