"""Converts a TokenRequest to vLLM's sampling parameters and prompt, and vLLM's outputs
to those of a TokenEngine.

vLLM's processor of the model processes each image separately, before the request is
built. The request then contains the token ids of the whole prompt, and the tensors,
hash and position of each image, as `vllm.inputs.engine.MultiModalInput` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from ...core.engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from ...core.errors import EngineError, RequestError, Unsupported
from ...core.events import FinishReason
from ...core.images import PreparedImage, PromptImage
from ..image_decoding import PillowImage, build_image_error, decode_image
from . import COPIED_PARAMETERS, ReasoningDelimiters, backend
from .backend import (
    MultiModalItem,
    PlaceholderMask,
    Processor,
    Prompt,
    RequestOutput,
    SamplingParams,
    StructuredOutputs,
    VllmConfig,
)

_PROBE_SIZE = 224
"""Width and height in pixels of the blank image that is processed at startup to find
the placeholder.
"""


class VllmImage(Struct, frozen=True):
    """A processed image, in `PreparedImage.model_inputs`.

    ids: the token ids that replace the placeholder.
    item: the image's tensors, as in vLLM's inputs.
    hash: the image's hash, as in vLLM's inputs.
    mask: which of the ids stand for image features; None means all.
    """

    ids: tuple[int, ...]
    item: MultiModalItem
    hash: str
    mask: PlaceholderMask


class VllmVision:
    """Processes images with vLLM's processor of the model. Implements
    `core.images.ImageProcessor`.

    processor: vLLM's processor, which includes the tokenizer.
    prompt: token ids of the model's placeholder text for one image.
    """

    def __init__(self, processor: Processor, tokenizer: Any, prompt: Sequence[int]) -> None:  # noqa: ANN401 - untyped
        self._processor = processor
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        # The processors of transformers are not thread-safe.
        self._lock = Lock()
        self._index, _ = self._process(backend.pillow.new("RGB", (_PROBE_SIZE, _PROBE_SIZE)))
        self._max_images: int = processor.info.allowed_mm_limits["image"]

    @property
    def placeholder(self) -> str:
        return self._tokenizer.convert_ids_to_tokens(self._prompt[self._index])

    @property
    def uses_text_placeholder(self) -> bool:
        return False

    def prepare(self, images: Sequence[bytes]) -> tuple[PreparedImage, ...]:
        if len(images) > self._max_images:
            raise RequestError(
                f"A request can have at most {self._max_images} images.", param="messages"
            )
        prepared: list[PreparedImage] = []
        for number, data in enumerate(images, 1):
            try:
                with self._lock:
                    _, image = self._process(decode_image(data))
            except EngineError:
                raise
            # Pillow and the processors raise many types for damaged or unsupported
            # images
            except Exception as error:
                raise build_image_error(number, error) from error
            text = self._tokenizer.decode(list(image.ids), skip_special_tokens=False)
            prepared.append(PreparedImage(text, blake2b(data, digest_size=16).digest(), image))
        return tuple(prepared)

    def _process(self, picture: PillowImage) -> tuple[int, VllmImage]:
        """Process one image. Returns the index of the placeholder in the prompt, and
        the processed image.

        Raises: EngineError if vLLM replaces more than one token of the prompt.
        """
        data = self._processor.info.parse_mm_data({"image": [picture]})
        inputs = backend.mm_inputs.ProcessorInputs(list(self._prompt), data)
        output = self._processor.apply(inputs, backend.mm_context.TimingContext(enabled=False))
        ids: list[int] = output["prompt_token_ids"]
        (place,) = output["mm_placeholders"]["image"]
        begin = place.offset
        end = place.offset + place.length
        if (*ids[:begin], self._prompt[begin], *ids[end:]) != tuple(self._prompt):
            raise EngineError("vLLM replaces more than one token of the prompt by an image")
        (item,) = output["mm_kwargs"]["image"]
        (digest,) = output["mm_hashes"]["image"]
        return begin, VllmImage(tuple(ids[begin:end]), item, digest, place.is_embed)

    def locate(
        self, prompt: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[PromptImage, ...]:
        places: list[PromptImage] = []
        end = 0
        for image in images:
            ids = get_image(image).ids
            # The search starts at the end of the preceding image, since equal images
            # have equal ids.
            begins = (
                begin
                for begin in range(end, len(prompt) - len(ids) + 1)
                if prompt[begin] == ids[0] and tuple(prompt[begin : begin + len(ids)]) == ids
            )
            begin = next(begins, None)
            if begin is None:
                raise RequestError(
                    "The prompt does not contain every image exactly once.", param="messages"
                )
            end = begin + len(ids)
            places.append(PromptImage(begin, end, image.digest, image.model_inputs))
        return tuple(places)


def get_image(image: PreparedImage | PromptImage) -> VllmImage:
    """Return the image that `VllmVision` processed."""
    if not isinstance(image.model_inputs, VllmImage):
        raise EngineError("the image was preprocessed for another engine")
    return image.model_inputs


def load_vision(config: VllmConfig) -> VllmVision | None:
    """Load the image processor of a model. None if the model has none, or one that
    cannot be used image by image.
    """
    model = config.model_config
    if not model.is_multimodal_model:
        return None
    tokenizer = backend.tokenizers.cached_tokenizer_from_config(model)
    processor = backend.multimodal.MULTIMODAL_REGISTRY.create_processor(model, tokenizer=tokenizer)
    if not processor.info.allowed_mm_limits.get("image"):
        return None
    text: str | None = backend.model_loader.get_model_cls(model).get_placeholder_str("image", 1)
    if text is None:
        return None
    try:
        return VllmVision(processor, tokenizer, tokenizer.encode(text, add_special_tokens=False))
    except EngineError:
        return None


# Requests.

_EMPTY_SALTS = ("", "\n")
"""The pipeline's salt if neither the server nor the client sets one."""

_SEED_MASK = (1 << 63) - 1
"""vLLM's seeds are 64-bit, and -1 means none; here every integer is a valid seed."""


def build_sampling_params(
    request: TokenRequest, eos: int | None, delimiters: ReasoningDelimiters | None
) -> SamplingParams:
    """Build sampling parameters.

    eos: the token that ends the output of a grammar.
    delimiters: those that vLLM was started with; None if the engine does not support
        reasoning budgets.

    vLLM's own end-of-sequence handling is off: only the stop ids that the pipeline has
    determined end the output.

    Raises: RequestError naming the field.
    """
    sampling = request.sampling
    stop_ids = request.stop_token_ids
    structured: StructuredOutputs | None = None
    if request.grammar is not None:
        if request.grammar.startswith("{"):
            message = (
                "This model's engine does not support a grammar together with tools or reasoning."
            )
            raise Unsupported(message, param="response_format")
        # vLLM uses llguidance, as the pipeline does, so a grammar allows the same
        # tokens.
        structured = backend.sampling.StructuredOutputsParams(grammar=request.grammar)
        # In vLLM a grammar can only end with this token, so the token has to end the
        # output too.
        stop_ids = stop_ids if eos is None else stop_ids | {eos}
    budget = request.reasoning_budget
    if budget is not None and (
        delimiters != (budget.begin_ids, budget.end_ids) or budget.forced_ids != budget.end_ids
    ):
        raise Unsupported(
            "This model's engine does not support reasoning budgets.", param="thinking_token_budget"
        )
    try:
        return backend.sampling.SamplingParams(
            **{name: getattr(sampling, name) for name in COPIED_PARAMETERS},
            seed=None if sampling.seed is None else sampling.seed & _SEED_MASK,
            logit_bias=dict(sampling.logit_bias) or None,
            allowed_token_ids=None
            if sampling.allowed_token_ids is None
            else list(sampling.allowed_token_ids),
            # vLLM's public field takes words and tokenizes them; here they are token
            # ids already.
            _bad_words_token_ids=[list(word) for word in sampling.bad_words] or None,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=sorted(stop_ids),
            ignore_eos=True,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            structured_outputs=structured,
            thinking_token_budget=None if budget is None else budget.max_tokens,
            extra_args=_build_extra_args(request),
            detokenize=False,
            output_kind=backend.sampling.RequestOutputKind.DELTA,
            skip_clone=True,
        )
    except backend.ClientError as error:
        raise build_request_error(error) from error


def build_prompt(request: TokenRequest) -> Prompt:
    salt = None if request.cache_salt in _EMPTY_SALTS else request.cache_salt
    if not request.images:
        return backend.inputs.tokens_input(list(request.prompt), cache_salt=salt)
    images = [get_image(image) for image in request.images]
    places = [
        backend.mm_types.PlaceholderRange(place.begin, place.end - place.begin, image.mask)
        for place, image in zip(request.images, images, strict=True)
    ]
    return backend.inputs.mm_input(
        list(request.prompt),
        backend.mm_types.MultiModalKwargsItems({"image": [image.item for image in images]}),
        {"image": [image.hash for image in images]},
        {"image": places},
        cache_salt=salt,
    )


def read_routing(request: TokenRequest) -> dict[str, Any]:
    """Return the arguments of `generate` that select an engine core, read from the same
    fields as in vLLM's server.
    """
    extras = request.extras
    routing: dict[str, Any] = {}
    if extras.data_parallel_rank is not None:
        routing["data_parallel_rank"] = extras.data_parallel_rank
    session_id: object = extras.session_id
    if session_id is None and extras.vllm_xargs is not None:
        session_id = msgspec.json.decode(extras.vllm_xargs, type=dict[str, Any]).get("session_id")
    if isinstance(session_id, str) and session_id:
        routing["session_id"] = session_id
    return routing


def build_request_error(error: Exception) -> RequestError:
    """Build the error of a request that vLLM rejects, with the field if vLLM names it."""
    parameter: object = vars(error).get("parameter")
    message = str(error.args[0]) if error.args else str(error)
    return RequestError(message, param=parameter if isinstance(parameter, str) else None)


def _build_extra_args(request: TokenRequest) -> dict[str, Any] | None:
    """Build `extra_args` in the form of vLLM's own server."""
    extras = request.extras
    extra_args: dict[str, Any] = {}
    if extras.vllm_xargs is not None:
        extra_args |= msgspec.json.decode(extras.vllm_xargs, type=dict[str, Any])
    if extras.kv_transfer_params is not None:
        extra_args["kv_transfer_params"] = msgspec.json.decode(extras.kv_transfer_params)
    return extra_args or None


# Outputs.

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


class VllmOutputReader:
    """Converts vLLM's outputs of one sequence to those of a TokenEngine.

    `Scheduled` comes with the first token, since vLLM does not report the end of
    queueing earlier.
    """

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._has_prompt_logprobs = request.prompt_logprobs is None
        self.has_started = False
        self._version: str | None = None

    def read(self, output: RequestOutput, version: str) -> list[TokenOutput]:
        """Read an output of `output_kind` DELTA, possibly of several steps.

        version: the version of the weights that sampled its tokens. vLLM itself reports
            versions only when a sequence ends. The current version is exact: before
            vLLM loads other weights it pauses and sends what it has sampled.
        """
        id = self._request.id
        completion = output.outputs[0]
        outputs: list[TokenOutput] = []
        if not self.has_started:
            self.has_started = True
            outputs.append(
                Scheduled(id, output.num_cached_tokens or 0, output.num_cache_creation_tokens)
            )
        if not self._has_prompt_logprobs and output.prompt_logprobs:
            self._has_prompt_logprobs = True
            num_logprobs = self._request.prompt_logprobs or 0
            pairs = zip(self._request.prompt, output.prompt_logprobs, strict=True)
            outputs.append(
                PromptLogprobs(
                    id,
                    tuple(
                        None if row is None else _build_logprob(row, token, num_logprobs)
                        for token, row in pairs
                    ),
                )
            )
        if completion.token_ids and version != self._version:
            self._version = version
            outputs.append(WeightVersionSet(id, version))
        if self._request.logprobs is None:
            outputs += [Sampled(id, token) for token in completion.token_ids]
        else:
            num_logprobs = self._request.logprobs
            pairs = zip(completion.token_ids, completion.logprobs, strict=True)
            outputs += [
                Sampled(id, token, _build_logprob(row, token, num_logprobs)) for token, row in pairs
            ]
        if completion.finish_reason is None:
            return outputs
        reason = _REASONS.get(completion.finish_reason)
        if reason is None:
            return [*outputs, Failed(id, "The engine failed while computing this request.")]
        stop = completion.stop_reason if isinstance(completion.stop_reason, int) else None
        transfer = (
            msgspec.json.encode(output.kv_transfer_params).decode()
            if output.kv_transfer_params
            else None
        )
        return [*outputs, Ended(id, reason, stop=stop, kv_transfer_params=transfer)]


def _build_logprob(row: Mapping[int, Any], token: int, num_logprobs: int) -> TokenLogprob:
    """Build the logprob of a token and its most likely alternatives.

    row: vLLM's logprobs by token id.
    """
    sampled = row[token]
    ranked = sorted(
        (other.rank, id, other.logprob) for id, other in row.items() if other.rank <= num_logprobs
    )
    return TokenLogprob(
        sampled.logprob,
        sampled.rank,
        tuple((id, logprob) for _, id, logprob in ranked[:num_logprobs]),
    )
