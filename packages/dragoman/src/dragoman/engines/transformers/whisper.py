"""Transcripts of Whisper models of the transformers library.

The model reads windows of 30 seconds. As in the library's own `generate`, the next one
begins where the last complete segment of a window ended, so that a transcript equals the
library's; the windows of concurrent requests take turns.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Struct

from ...core.engine import Health
from ...core.errors import EngineError, Overloaded, RequestError, Unsupported
from ...core.transcription import (
    AudioFile,
    SpeechTask,
    SpeechToken,
    SpeechUsage,
    TranscribeRequest,
    TranscriptDelta,
    TranscriptEnd,
    TranscriptEvent,
    TranscriptSegment,
)
from ..audio_decoding import MAX_SECONDS, Samples, decode_audio
from ..dynamic_batcher import Batcher
from ..hardware import count_usable_cores
from .backend import Network, Tensor, library, torch
from .load_network import TransformersOptions, load_network

T = TypeVar("T")

WINDOW_FRAMES = 3000
FRAMES_PER_SECOND = 100
SECONDS_PER_TIMESTAMP = 0.02
FRAMES_PER_TIMESTAMP = 2
MAX_DECODERS = 2
"""Files that are decoded at once."""
AUTO_CHUNKING = (("chunking_strategy", "auto"),)


class DecodedTokens(Struct, frozen=True):
    """The tokens of a window, without its prompt and the end token, with their
    log-probabilities.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class WindowSegment(Struct, frozen=True):
    """A segment of a window: its tokens from `first` to `last`, and its times in
    seconds from the start of the window.
    """

    first: int
    last: int
    start: float
    end: float


def split_window(
    ids: tuple[int, ...], timestamp_begin: int, frames: int
) -> tuple[list[WindowSegment], int]:
    """Split the tokens of a window into segments, as the library's `_retrieve_segment`
    does. Return them with the number of frames that they cover.

    timestamp_begin: id of the timestamp of 0 seconds.
    frames: of the window's audio.
    """
    is_timestamp = [id >= timestamp_begin for id in ids]

    def read_time(index: int) -> float:
        return (ids[index] - timestamp_begin) * SECONDS_PER_TIMESTAMP

    cuts = [i + 1 for i in range(len(ids) - 1) if is_timestamp[i] and is_timestamp[i + 1]]
    if not cuts:
        times = [i for i, is_time in enumerate(is_timestamp) if is_time]
        end = frames / FRAMES_PER_SECOND
        if times and ids[times[-1]] != timestamp_begin:
            end = read_time(times[-1])
        return [WindowSegment(0, len(ids), 0.0, end)], frames
    # A single timestamp at the end: there is no speech after it.
    is_complete = is_timestamp[-2:] == [False, True]
    if is_complete:
        cuts.append(len(ids))
    else:
        # The second timestamp belongs to the unfinished segment, which is read again.
        cuts[-1] += 1
    segments: list[WindowSegment] = []
    first = 0
    for cut in cuts:
        last_time = cut - 1 if is_complete or cut != cuts[-1] else cut - 2
        segments.append(WindowSegment(first, cut, read_time(first), read_time(last_time)))
        first = cut
    if is_complete:
        return segments, frames
    covered = (ids[cuts[-1] - 2] - timestamp_begin) * FRAMES_PER_TIMESTAMP
    # A window that ended where it began would be read forever.
    return segments, covered or frames


class _Options(Struct, frozen=True):
    """The options of one transcript. language: None for an English-only model."""

    language: str | None
    task: SpeechTask
    prompt_ids: Any
    temperature: float | None


class WhisperNetwork:
    """A network with its feature extractor and its tokenizer. Its methods are called
    from one thread at a time.
    """

    def __init__(self, network: Network, processor: Any) -> None:  # noqa: ANN401 - untyped
        self._network = network
        self._extractor = processor.feature_extractor
        self._tokenizer = processor.tokenizer
        config = network.generation_config
        begin = getattr(config, "no_timestamps_token_id", None)
        if begin is None:
            raise EngineError("generation_config.json has no no_timestamps_token_id")
        self.timestamp_begin: int = begin + 1
        codes: dict[str, int] = getattr(config, "lang_to_id", None) or {}
        self._languages = {token[2:-2]: id for token, id in codes.items()}
        self.max_positions: int = network.config.max_target_positions
        self.audio_positions: int = network.config.max_source_positions
        self.rate: int = self._extractor.sampling_rate
        names: dict[str, str] = library.models.whisper.tokenization_whisper.LANGUAGES
        self._names = names

    @property
    def is_multilingual(self) -> bool:
        return bool(self._languages)

    def find_language(self, language: str) -> str:
        """Return the code of a language, which may be given by its English name."""
        codes = self._languages or {"en": 0}
        by_name = {name: code for code, name in self._names.items()}
        code = by_name.get(language.lower(), language.lower())
        if code not in codes:
            raise RequestError(
                f"The model does not know the language {language!r}; it knows "
                f"{', '.join(sorted(codes))}.",
                param="language",
                code="invalid_value",
            )
        return code

    def name_language(self, code: str | None) -> str:
        return self._names.get(code or "en", code or "en")

    def extract_features(self, samples: Samples) -> Tensor:
        """Compute the features of the whole audio, of at least one window."""
        is_long = len(samples) > self._extractor.n_samples
        options = {"truncation": False, "padding": "longest"} if is_long else {}
        features = self._extractor(
            samples, sampling_rate=self.rate, return_tensors="pt", **options
        ).input_features
        return features.to(self._network.device, self._network.dtype)

    def detect_language(self, features: Tensor) -> str:
        [id] = self._network.detect_language(features[:, :, :WINDOW_FRAMES]).tolist()
        return next(code for code, known in self._languages.items() if known == id)

    def encode_prompt(self, prompt: str) -> Tensor:
        """Encode a text that precedes the audio; of a long one only the end counts."""
        ids = self._tokenizer.get_prompt_ids(prompt, return_tensors="pt")
        limit = self.max_positions // 2 - 1
        if len(ids) > limit:
            ids = torch.cat([ids[:1], ids[1 - limit :]])
        return ids.to(self._network.device)

    def decode_window(self, features: Tensor, options: _Options) -> DecodedTokens:
        """Generate the tokens of a window, which is padded to its full length."""
        missing = WINDOW_FRAMES - features.shape[-1]
        window = torch.nn.functional.pad(features, (0, missing))
        choices: dict[str, Any] = {}
        if self.is_multilingual:
            choices = {"language": options.language, "task": options.task.value}
        if options.temperature:
            choices["temperature"] = options.temperature
        if options.prompt_ids is not None:
            choices["prompt_ids"] = options.prompt_ids
        with torch.inference_mode():
            output = self._network.generate(
                window,
                return_timestamps=True,
                force_unique_generate_call=True,
                return_dict_in_generate=True,
                output_scores=True,
                **choices,
            )
        scores = output.scores
        ids: list[int] = output.sequences[0, -len(scores) :].tolist()
        logprobs = [
            float(torch.log_softmax(row[0].float(), dim=-1)[id])
            for row, id in zip(scores, ids, strict=True)
        ]
        eos = self._network.generation_config.eos_token_id
        if ids and ids[-1] == eos:
            return DecodedTokens(tuple(ids[:-1]), tuple(logprobs[:-1]))
        return DecodedTokens(tuple(ids), tuple(logprobs))

    def is_text(self, id: int) -> bool:
        """Whether a token is a part of the text: control tokens come after these."""
        return id < self._network.generation_config.eos_token_id

    def decode_text(self, ids: tuple[int, ...]) -> str:
        text: str = self._tokenizer.decode([id for id in ids if self.is_text(id)])
        return text


class WhisperEngine:
    """Turns speech into text. Implements `Encoder` and `Transcriber` of `core`.

    max_held_seconds: limit of the audio of all requests at once, of which each second
        takes up to 64 kB; at least that of one file.
    """

    def __init__(
        self,
        network: WhisperNetwork,
        max_waiting: int,
        max_held_seconds: float = 4 * MAX_SECONDS,
    ) -> None:
        self._network = network
        self._max_held_seconds = max_held_seconds
        self._held_seconds = 0.0
        # Threads of their own: long files would take all of the event loop's.
        self._decoders = ThreadPoolExecutor(MAX_DECODERS, thread_name_prefix="audio-decoder")
        self._batcher: Batcher[Callable[[], Any], Any] = Batcher(
            lambda calls: [call() for call in calls],
            lambda _: 1,
            max_batch_tokens=1,
            max_waiting=max_waiting,
            name="whisper",
            probe=self._compute_probe,
        )

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a window."""
        return self._network.max_positions

    async def start(self) -> None:
        await self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptEvent]:
        """Implements `Transcriber`: yields the segments of a window when it has been
        read.
        """
        network = self._network
        self._check_request(request)
        language = None if request.language is None else network.find_language(request.language)
        async with self._hold_features(request.audio) as (features, duration):
            windows = self._read_windows(request, language, features, duration)
            async with aclosing(windows):
                async for event in windows:
                    yield event

    async def _read_windows(
        self, request: TranscribeRequest, language: str | None, features: Tensor, duration: float
    ) -> AsyncGenerator[TranscriptEvent]:
        network = self._network
        if network.is_multilingual and language is None:
            language = await self._run(lambda: network.detect_language(features))
        prompt_ids = await self._encode_prompt(request.prompt)
        text_tokens = 0 if prompt_ids is None else len(prompt_ids)
        usage = SpeechUsage()
        options = _Options(language, request.task, prompt_ids, request.temperature)
        transcript = _TranscriptText()
        segments: list[TranscriptSegment] = []
        n_windows = n_output = seek = 0
        while seek < features.shape[-1]:
            window = features[:, :, seek : seek + WINDOW_FRAMES]
            tokens = await self._run(lambda window=window: network.decode_window(window, options))
            n_windows += 1
            n_output += len(tokens.ids)
            audio_tokens = n_windows * network.audio_positions
            usage = SpeechUsage(
                None, audio_tokens + text_tokens, n_output, audio_tokens, text_tokens
            )
            found, covered = split_window(tokens.ids, network.timestamp_begin, window.shape[-1])
            for part in found:
                segment = self._build_segment(part, tokens, seek, len(segments), request)
                segments.append(segment)
                pieces = self._list_tokens(part, tokens) if request.has_logprobs else ()
                text = transcript.feed(segment.text)
                if text or pieces:
                    yield TranscriptDelta(text, pieces, usage)
            seek += covered
        yield TranscriptEnd(
            tuple(segments),
            None,
            network.name_language(language),
            duration,
            msgspec.structs.replace(usage, seconds=math.ceil(duration)),
        )

    @asynccontextmanager
    async def _hold_features(self, audio: AudioFile) -> AsyncGenerator[tuple[Tensor, float]]:
        """Decode a file; yield its features and its length in seconds.

        Raises:
            Overloaded: the files of other requests take the memory.
        """
        rate = self._network.rate
        loop = asyncio.get_running_loop()
        samples = await loop.run_in_executor(self._decoders, decode_audio, audio, rate)
        if not len(samples):
            raise RequestError("The audio file has no samples.", param="file", code="invalid_value")
        duration = len(samples) / rate
        # Features are those of at least one window.
        held = max(duration, WINDOW_FRAMES / FRAMES_PER_SECOND)
        if self._held_seconds + held > self._max_held_seconds:
            raise Overloaded("The memory for audio is exhausted; retry later.")
        self._held_seconds += held
        try:
            features = await self._run(partial(self._network.extract_features, samples))
            # They need more memory than the features.
            del samples
            yield features, duration
        finally:
            self._held_seconds -= held

    async def _encode_prompt(self, prompt: str | None) -> Tensor | None:
        if prompt is None:
            return None
        try:
            return await asyncio.to_thread(self._network.encode_prompt, prompt)
        except ValueError:
            raise RequestError(
                "The prompt contains a control token of the model.",
                param="prompt",
                code="invalid_value",
            ) from None

    def _check_request(self, request: TranscribeRequest) -> None:
        if request.has_words:
            raise Unsupported(
                "The engine reports the times of segments, not of words.",
                param="timestamp_granularities",
            )
        if request.chunking not in ((), AUTO_CHUNKING):
            raise Unsupported(
                "The engine cuts the audio itself: 'chunking_strategy' must be 'auto'.",
                param="chunking_strategy",
            )
        if request.task is SpeechTask.TRANSLATE and not self._network.is_multilingual:
            raise Unsupported("The model knows only English: it does not translate.", param="model")

    def _build_segment(
        self,
        part: WindowSegment,
        tokens: DecodedTokens,
        seek: int,
        index: int,
        request: TranscribeRequest,
    ) -> TranscriptSegment:
        ids = tokens.ids[part.first : part.last]
        logprobs = tokens.logprobs[part.first : part.last]
        text = self._network.decode_text(ids)
        data = text.encode()
        offset = seek / FRAMES_PER_SECOND
        return TranscriptSegment(
            text,
            offset + part.start,
            offset + part.end,
            index,
            seek,
            ids,
            request.temperature or 0.0,
            float(np.mean(logprobs)) if logprobs else None,
            # As Whisper computes it: repetitions compress well.
            len(data) / len(zlib.compress(data)),
        )

    def _list_tokens(self, part: WindowSegment, tokens: DecodedTokens) -> tuple[SpeechToken, ...]:
        pairs = zip(tokens.ids, tokens.logprobs, strict=True)
        return tuple(
            SpeechToken(self._network.decode_text((id,)), logprob)
            for id, logprob in list(pairs)[part.first : part.last]
            if self._network.is_text(id)
        )

    async def _run(self, compute: Callable[[], T]) -> T:
        """Run on the engine's thread, in turn with other requests."""
        [result] = await self._batcher.run([compute])
        return cast("T", result)

    def _compute_probe(self) -> object:
        silence = np.zeros(self._network.rate, np.float32)
        return self._network.extract_features(silence)


class _TranscriptText:
    """Joins the texts of segments, without the white space around all of them."""

    def __init__(self) -> None:
        self._space: str = ""
        self._has_text = False

    def feed(self, text: str) -> str:
        """Return the next piece of the text; white space at the end waits for more."""
        text = self._space + text if self._has_text else text.lstrip()
        piece = text.rstrip()
        self._space = text[len(piece) :]
        self._has_text = self._has_text or bool(piece)
        return piece


def load(
    directory: Path,
    options: TransformersOptions,
    *,
    max_waiting: int,
    max_held_seconds: float = 4 * MAX_SECONDS,
) -> WhisperEngine:
    """Load an engine, not started yet. Raises EngineError for an unsupported model."""
    network = load_network(directory, options, library.AutoModelForSpeechSeq2Seq)
    if network.device.type == "cpu":
        torch.set_num_threads(options.threads or count_usable_cores())
    processor = library.WhisperProcessor.from_pretrained(directory, local_files_only=True)
    return WhisperEngine(WhisperNetwork(network, processor), max_waiting, max_held_seconds)
