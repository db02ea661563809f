"""A Llama in torch for training on one CPU core, and its export with the names of
transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from .tokenizer import END, PAD

CONTEXT = 32768


@dataclass(frozen=True)
class Shape:
    """The sizes of the model."""

    vocabulary: int = 2048
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    inner: int = 512
    head: int = 32
    theta: float = 10000.0
    epsilon: float = 1e-6


class Block(nn.Module):
    """A layer: attention and a gated feed-forward network, each with a normalised input
    and a residual connection.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        self.feed_norm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        self.qkv = nn.Linear(
            shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head, bias=False
        )
        self.out = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

    def sizes(self) -> list[int]:
        """Return the widths of q, k and v in the joint projection."""
        return [self.shape.heads * self.shape.head] + [self.shape.kv_heads * self.shape.head] * 2

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x is [batch, time, hidden]."""
        batch, time, _ = x.shape
        projected = self.qkv(self.attention_norm(x)).split(self.sizes(), -1)
        q, k, v = (
            part.view(batch, time, -1, self.shape.head).transpose(1, 2) for part in projected
        )
        groups = self.shape.heads // self.shape.kv_heads
        q = _rotate(q, cos, sin)
        k = _rotate(k, cos, sin)
        mixed = _attend(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, -1))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention.

    The backward pass of the fused bf16 kernel is slow on a CPU, so short rows take
    plain products, and long ones the fused float32 kernel.
    """
    time = q.shape[2]
    if time > 256:
        return functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=True
        )
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * q.shape[3] ** -0.5).masked_fill(later, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


class Llama(nn.Module):
    """The model, with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens is [batch, time]; the result is the normalised hidden state of the
        last layer.
        """
        half = torch.arange(0, self.shape.head, 2) / self.shape.head
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), 1 / self.shape.theta**half)
        cos = angles.cos()
        sin = angles.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)

    def loss(self, tokens: Tensor, learned: Tensor) -> Tensor:
        """Mean cross-entropy of the tokens that `learned` marks, given everything
        before them.
        """
        hidden = self(tokens[:, :-1])[learned[:, 1:]]
        logits = (hidden @ self.embedding.weight.T).float()
        return functional.cross_entropy(logits, tokens[:, 1:][learned[:, 1:]])


def export(model: Llama, folder: Path) -> None:
    """Write model.safetensors (bf16), config.json and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    halved = {
        name: value.detach().to(torch.bfloat16).contiguous().clone()
        for name, value in _tensors(model).items()
    }
    save_file(halved, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(model.shape))
    _write_json(folder / "generation_config.json", {"eos_token_id": END, "pad_token_id": PAD})


def restore(model: Llama, folder: Path) -> None:
    """Read the weights that `export` wrote."""
    saved = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, value in _tensors(model).items():
            value.copy_(saved[name])


def _tensors(model: Llama) -> dict[str, Tensor]:
    """Return the weights by their public names, as views that can be written to."""
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
    }
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        tensors |= {
            f"model.layers.{index}.{name}.weight": value
            for name, value in _block_tensors(block).items()
        }
    return tensors


def _block_tensors(block: Block) -> dict[str, Tensor]:
    q, k, v = block.qkv.weight.split(block.sizes())
    gate, up = block.gate_up.weight.chunk(2)
    return {
        "input_layernorm": block.attention_norm.weight,
        "post_attention_layernorm": block.feed_norm.weight,
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": block.out.weight,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": block.down.weight,
    }


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": END,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": PAD,
        "rms_norm_eps": shape.epsilon,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "rope_theta": shape.theta,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
