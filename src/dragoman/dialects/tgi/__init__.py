"""TGI's /generate and /generate_stream, LightLLM's too: `inputs` and `parameters` in; a text, token by token, out."""

from .errors import tgi_error, tgi_status
from .info import tgi_info
from .reader import read_tgi, speaks_tgi
from .writer import TgiView, TgiWriter

__all__ = ["TgiView", "TgiWriter", "read_tgi", "speaks_tgi", "tgi_error", "tgi_info", "tgi_status"]
