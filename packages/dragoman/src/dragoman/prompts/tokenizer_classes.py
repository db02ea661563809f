"""The rules of the tokenizer class that `tokenizer_config.json` names.

transformers 5 builds the tokenizers of some classes anew: from the vocabulary, merges and
post-processor of `tokenizer.json`, with the normalizer and pre-tokenizer of the class.
All other parts of the file, and the files of all other classes, count as they are. The
fields `add_bos_token` and `add_eos_token` then have no effect: the post-processor of the
file decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct

from .tokenizer_file import TokenizerPart, find_model_type, iterate_components

_FILE_MODELS = frozenset(
    {
        *("arctic", "aria", "camembertv2-base", "chatlm", "cohere_asr", "ernie4_5", "ernie4_5_moe"),
        *("flex_olmo", "fuyu", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe"),
        *("glm_image", "glmasr", "got_ocr2", "gpt_bigcode", "granite", "granitemoe"),
        *("granitemoehybrid", "granitemoeshared", "h2ovl_chat", "hyperclovax", "hyperclovax_vlm"),
        *("internlm2", "internlm3", "iquestcoder", "jamba", "kimi_k25", "kimi_linear", "kosmos-2"),
        *("llava", "llava_next", "mimo_v2_flash", "minicpm3", "minicpm_ocr", "minicpmv"),
        *("minicpmv4_6", "minicpmv4_7", "minimax_m2", "ministral", "ministral3", "mistral"),
        *("mistral3", "mistral_large4", "mixtral", "modernbert", "modernbert-decoder", "molmo"),
        *("molmo2", "nemotron", "nvfp4", "nystromformer", "olmo2", "olmo3", "olmo_hybrid"),
        *("opencua", "openvla", "paddleocr_vl", "persimmon", "phi3", "phi3_v", "phimoe", "pixtral"),
        *("smolvlm", "stablelm", "step3_vl", "umt5", "vipllava", "voxtral", "voxtral_realtime"),
    }
)
"""Model types for which the file counts, whatever class is named."""
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPACE = "\u2581"
"""SentencePiece's character for a space."""


class _Token(Struct):
    content: str


class TokenizerClass(Struct):
    """The fields of tokenizer_config.json that a class reads."""

    tokenizer_class: str | None = None
    auto_map: object = None
    add_prefix_space: bool | None = None
    legacy: bool | None = False
    trim_offsets: bool = True
    cls_token: str | _Token | None = "<s>"
    sep_token: str | _Token | None = "</s>"


class _ModelConfig(Struct):
    model_type: str = ""


def read_model_type(config: bytes) -> str:
    """Read the field of a config.json; empty if there is none."""
    try:
        return msgspec.json.decode(config, type=_ModelConfig).model_type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def build_class_parts(
    data: TokenizerPart, config: TokenizerClass, model_type: str
) -> TokenizerPart:
    """Build the parts of a class that replace those of a tokenizer.json; none if the file
    counts as it is.

    model_type: of config.json; empty if it is not known.
    """
    build_parts = _BUILDERS.get(_resolve_class(data, config, model_type))
    return {} if build_parts is None else build_parts(data, config)


def _resolve_class(data: TokenizerPart, config: TokenizerClass, model_type: str) -> str:
    """Return the class that transformers uses, without `Fast`; empty if it uses the file
    as it is.
    """
    name = (config.tokenizer_class or "").removesuffix("Fast")
    if not name or config.auto_map is not None or model_type in _FILE_MODELS:
        return ""
    # The classes build byte-pair encodings.
    if find_model_type(data["model"]) != "BPE":
        return ""
    # Models of this type name many wrong classes.
    if model_type == "qwen2":
        return "Qwen2Tokenizer"
    is_byte_level = any(
        part.get("type") == "ByteLevel"
        for kind in ("pre_tokenizer", "decoder")
        for part in iterate_components(data.get(kind))
    )
    # Llama 3 and its descendants name Llama 2's class.
    return "" if name == "LlamaTokenizer" and is_byte_level else name


def _build_llama(_: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    return _build_metaspace(config, "always" if config.legacy else "first")


def _build_code_llama(_: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    return _build_metaspace(config, "first")


def _build_metaspace(config: TokenizerClass, scheme: str) -> TokenizerPart:
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "never" if config.add_prefix_space is False else scheme,
            "split": False,
        },
    }


def _build_gemma(_: TokenizerPart, _config: TokenizerClass) -> TokenizerPart:
    pattern = {"String": " "}
    return {
        "normalizer": {"type": "Replace", "pattern": pattern, "content": _SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": pattern,
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
    }


def _build_gpt2(_: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    return {"normalizer": None, "pre_tokenizer": _build_byte_level(config)}


def _build_gpt_neox(_: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    # The class writes a post-processor without special tokens over the file's.
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": _build_byte_level(config),
        "post_processor": None,
    }


def _build_qwen2(_: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    split = {
        "type": "Split",
        "pattern": {"Regex": _QWEN2_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    splitters = [split, _build_byte_level(config, splits=False)]
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitters},
    }


def _build_roberta(data: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    return _build_gpt2(data, config) | _build_roberta_processor(data, config)


def _build_byte_level(config: TokenizerClass, *, splits: bool = True) -> TokenizerPart:
    return {
        "type": "ByteLevel",
        "add_prefix_space": bool(config.add_prefix_space),
        "trim_offsets": True,
        "use_regex": splits,
    }


def _build_roberta_processor(data: TokenizerPart, config: TokenizerClass) -> TokenizerPart:
    """Build RoBERTa's post-processor; nothing if its tokens are not in the vocabulary."""
    vocab: dict[str, int] = data["model"].get("vocab") or {}
    ends: list[list[object]] = []
    for token in (config.sep_token, config.cls_token):
        name = token.content if isinstance(token, _Token) else token
        if name is None or name not in vocab:
            return {}
        ends.append([name, vocab[name]])
    return {
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ends[0],
            "cls": ends[1],
            "trim_offsets": config.trim_offsets,
            "add_prefix_space": bool(config.add_prefix_space),
        }
    }


_BUILDERS: Mapping[str, Callable[[TokenizerPart, TokenizerClass], TokenizerPart]] = (
    MappingProxyType(
        {
            "LlamaTokenizer": _build_llama,
            "CodeLlamaTokenizer": _build_code_llama,
            "GemmaTokenizer": _build_gemma,
            "GPT2Tokenizer": _build_gpt2,
            "GPTNeoXTokenizer": _build_gpt_neox,
            "Qwen2Tokenizer": _build_qwen2,
            "RobertaTokenizer": _build_roberta,
        }
    )
)
"""The parts of tokenizer.json that each class replaces."""
