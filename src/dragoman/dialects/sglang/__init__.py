"""SGLang's /generate: a text or token ids in; text, token ids and metadata (`meta_info`) out."""

from .reader import read_sglang
from .writer import SglangRenderOptions, SglangWriter

__all__ = ["SglangRenderOptions", "SglangWriter", "read_sglang"]
