"""Models served by vLLM in this process and its workers, with its scheduler, kernels and Ray clusters.

Only `backend` and its importers need vLLM. Independent of templates, text and dialects: token ids in, token ids out.
"""
