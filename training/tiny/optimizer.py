"""Muon (Jordan et al., 2024) for the matrices of the blocks, AdamW for the rest. A
small model learns about twice as much from a token as with AdamW alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .model import Llama


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """Return an approximately orthogonal matrix with the singular vectors of this one
    (the quintic Newton-Schulz iteration).
    """
    x = matrix.to(torch.bfloat16)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.T if tall else x).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized for each matrix."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # noqa: ARG002
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonal(weight.grad.lerp(average, group["momentum"]))
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.add_(
                    update, alpha=-group["lr"] * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                )


def optimizers(model: Llama, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks, and AdamW for embedding and norms.
    The schedule reads `initial_lr`.
    """
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    both: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=matrix_lr),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in both:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return both
