"""Models of vLLM, which runs in this process and a few of its own: its scheduler, its kernels, its cluster by Ray.

Only `backend`, and what imports it, needs vLLM. Knows nothing of templates, text or dialects: token ids go in, and
token ids come out.
"""
