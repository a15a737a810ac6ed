"""RMSNorm with a weight, on the last dimension."""

import torch
from torch import Tensor, nn

from .functional import Normed, rms_norm


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.take_in(x).y

    def take_in(self, x: Tensor, branch: Tensor | None = None) -> Normed:
        """x + branch, and that normalised. Under autocast stream, branch and weights may be of different types."""
        branch = None if branch is None else branch.to(x.dtype)
        return rms_norm(x, self.weight.to(x.dtype), self.eps, branch)
