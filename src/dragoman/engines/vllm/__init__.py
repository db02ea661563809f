"""Models served by vLLM in this process and its workers, with its scheduler, kernels and Ray clusters.

Token ids in, token ids out. Only `backend` and its importers need vLLM.
"""
