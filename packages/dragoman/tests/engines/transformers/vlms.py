"""Small vision models with random weights, saved as on the hub: with tokenizer,
processor and template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from dragoman.engines.transformers.backend import library, torch

QWEN_VISION = {
    "hidden_size": 32,
    "out_hidden_size": 32,
    "intermediate_size": 48,
    "depth": 2,
    "num_heads": 4,
    "patch_size": 7,
    "spatial_merge_size": 2,
}
QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
TEXT: dict[str, Any] = {
    "vocab_size": 340,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {"model_type": "llama", **TEXT}
EYES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
    "initializer_range": 0.4,
}
MARKS = {
    "llava": ["<image>"],
    "idefics3": [
        *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
        *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
    ],
    "qwen2_5_vl": ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "qwen3_5": ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "gemma3": ["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
    "aya_vision": [
        *("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE_GLOBAL"),
        *(f"TILE_{tile}" for tile in range(1, 4)),
    ],
}
NAMED_MARKS = {
    "gemma3": {
        "boi_token": "<start_of_image>",
        "image_token": "<image_soft_token>",
        "eoi_token": "<end_of_image>",
    }
}
TEMPLATE = """\
{%- for message in messages -%}
{{ message.role }}:{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}PLACE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""  # noqa: E501


def save(kind: str, directory: Path) -> Path:
    """Save a model. Raises KeyError for an unknown kind."""
    torch.manual_seed(3)
    tokenizer = _tokenizer(MARKS[kind], NAMED_MARKS.get(kind, {}))
    network, processor = _MAKERS[kind](tokenizer)
    place = MARKS[kind][0]
    placeholder = f"<|vision_start|>{place}<|vision_end|>" if kind.startswith("qwen") else place
    network.eval().save_pretrained(directory)
    processor.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE.replace("PLACE", placeholder))
    return directory


def _tokenizer(marks: list[str], named_marks: dict[str, str]) -> Any:
    """Build a tokenizer with one token per byte, and the control tokens.

    named_marks: control tokens that are attributes of the tokenizer.
    """
    special = ["<pad>", "<s>", "</s>", *marks]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer: Any = Tokenizer(BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=named_marks,
    )


def _llava(tokenizer: Any) -> tuple[Any, Any]:
    config = library.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **EYES},
        text_config=LLAMA,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    images = library.CLIPImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )
    processor = library.LlavaProcessor(
        images,
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return library.LlavaForConditionalGeneration(config), processor


def _idefics3(tokenizer: Any) -> tuple[Any, Any]:
    """Images are split into tiles, each preceded by text with its position."""
    config = library.Idefics3Config(
        vision_config=EYES,
        text_config=LLAMA,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    images = library.Idefics3ImageProcessorPil(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
    )
    return library.Idefics3ForConditionalGeneration(config), library.Idefics3Processor(
        images, tokenizer, image_seq_len=4
    )


def _qwen(tokenizer: Any) -> tuple[Any, Any]:
    """Positions in three dimensions; as many tokens as the image has patches."""
    vision = {
        **QWEN_VISION,
        "window_size": 28,
        "fullatt_block_indexes": [1],
        "initializer_range": 0.4,
    }
    return _build_qwen(
        tokenizer,
        library.Qwen2_5_VLForConditionalGeneration,
        vision,
        {"rope_parameters": QWEN_ROPE},
    )


def _qwen3_5(tokenizer: Any) -> tuple[Any, Any]:
    """As `_qwen`, with additional recurrent layers."""
    vision = {**QWEN_VISION, "num_position_embeddings": 16, "initializer_range": 0.4}
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    }
    rope = {**QWEN_ROPE, "partial_rotary_factor": 1.0}
    text = {**linear, "rope_parameters": rope}
    return _build_qwen(tokenizer, library.Qwen3_5ForConditionalGeneration, vision, text)


def _build_qwen(
    tokenizer: Any, network: Any, vision: dict[str, Any], text: dict[str, Any]
) -> tuple[Any, Any]:
    token = tokenizer.convert_tokens_to_ids
    config = network.config_class(
        vision_config=vision,
        text_config={**TEXT, **text},
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    images = library.Qwen2VLImageProcessorPil(
        patch_size=7, merge_size=2, size={"shortest_edge": 14 * 14 * 2, "longest_edge": 56 * 56}
    )
    return network(config), images


def _gemma3(tokenizer: Any) -> tuple[Any, Any]:
    """Tokens of an image attend to each other in both directions, which paged attention
    does not support.
    """
    token = tokenizer.convert_tokens_to_ids
    text = {"model_type": "gemma3_text", **TEXT, "query_pre_attn_scalar": 8}
    config = library.Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **EYES},
        text_config=text,
        mm_tokens_per_image=4,
        image_token_id=token("<image_soft_token>"),
        boi_token_id=token("<start_of_image>"),
        eoi_token_id=token("<end_of_image>"),
    )
    images = library.Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    return library.Gemma3ForConditionalGeneration(config), library.Gemma3Processor(
        images, tokenizer, image_seq_length=4
    )


def _aya_vision(tokenizer: Any) -> tuple[Any, Any]:
    """The template's placeholder is not the token that stands for a row of features."""
    config = library.AyaVisionConfig(
        vision_config={"model_type": "siglip_vision_model", **EYES},
        text_config={"model_type": "cohere2", **TEXT, "sliding_window": 64},
        downsample_factor=2,
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )
    images = library.GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=3
    )
    return library.AyaVisionForConditionalGeneration(config), library.AyaVisionProcessor(
        images, tokenizer, patch_size=7, img_size=28, downsample_factor=2
    )


_MAKERS = {
    "llava": _llava,
    "idefics3": _idefics3,
    "qwen2_5_vl": _qwen,
    "qwen3_5": _qwen3_5,
    "gemma3": _gemma3,
    "aya_vision": _aya_vision,
}
