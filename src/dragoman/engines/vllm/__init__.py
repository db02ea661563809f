"""Models of vLLM, which runs in this process and a few of its own: its scheduler, its kernels, its cluster by Ray.

Only importing this needs vLLM. Knows nothing of templates, text or dialects: token ids go in, token ids come out.
"""

from .engine import VllmEngine
from .options import VllmOptions, load

__all__ = ["VllmEngine", "VllmOptions", "load"]
