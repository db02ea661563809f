"""The engine `vllm`: models that vLLM runs in this process."""
