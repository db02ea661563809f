"""llama.cpp's own routes: /completion, /infill, /props, /slots and /apply-template.

Editors' plug-ins (llama.vim, llama.vscode) and launchers of llama.cpp's server use
them. Fields and responses as in llama.cpp's `tools/server/README.md`.
"""

from .reader import read_completion, read_infill

__all__ = ["read_completion", "read_infill"]
