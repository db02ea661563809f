"""/generate and /generate_stream, as in TGI: parses `inputs` and `parameters`, renders
text and tokens.
"""

from .errors import map_tgi_status, render_tgi_error
from .reader import is_tgi_body, read_tgi
from .wire import render_tgi_info
from .writer import TgiRenderOptions, TgiWriter

__all__ = [
    "TgiRenderOptions",
    "TgiWriter",
    "is_tgi_body",
    "map_tgi_status",
    "read_tgi",
    "render_tgi_error",
    "render_tgi_info",
]
