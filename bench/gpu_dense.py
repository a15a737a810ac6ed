"""What the operators are compared with: torch's scaled_dot_product_attention by cuDNN or FlashAttention."""

import sys

import gpu_inputs
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}


class Dense:
    """torch's attention: the faster of its two backends. Arguments as ours, [B, tokens, heads, size]."""

    @staticmethod
    def call(q, k, v, causal):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)

    @classmethod
    def fastest(cls, measure, run):
        """measure(run) under each backend that takes the call: (milliseconds, name)."""
        if gpu_inputs.device == "cpu":
            return measure(run), "torch"
        times = []
        for name, backend in BACKENDS.items():
            try:
                with sdpa_kernel(backend):
                    times.append((measure(run), name))
            except RuntimeError as error:
                print(f"  {name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return min(times)

    @classmethod
    def forward(cls, measure, q, k, v, causal=True):
        return cls.fastest(measure, lambda: cls.call(q, k, v, causal))

    @classmethod
    def forward_backward(cls, measure, q, k, v, dout):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return cls.fastest(measure, lambda: torch.autograd.grad(cls.call(*leaves, True), leaves, dout))
