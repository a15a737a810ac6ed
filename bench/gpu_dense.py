"""What the operators are compared with: torch's scaled_dot_product_attention by cuDNN or FlashAttention."""

import contextlib
import sys
import warnings

import gpu_inputs
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}


@contextlib.contextmanager
def only_deterministic():
    """torch takes deterministic algorithms alone, and refuses what has none. New tensors are not filled with NaN, which
    it does in this mode to show reads of uninitialised memory: that is no part of the work."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled


class Dense:
    """torch's attention: the faster of its two backends. Arguments as ours, [B, tokens, heads, size]."""

    @staticmethod
    def call(q, k, v, causal):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)

    @classmethod
    def fastest(cls, measure, run, deterministic=False):
        """measure(run) under each backend that takes the call: (milliseconds, name). deterministic: without those that
        refuse to be, or warn that they are not."""
        with only_deterministic() if deterministic else contextlib.nullcontext():
            if gpu_inputs.device == "cpu":
                return measure(run), "torch"
            times = []
            for name, backend in BACKENDS.items():
                with sdpa_kernel(backend), warnings.catch_warnings(record=deterministic) as said:
                    warnings.simplefilter("always")
                    try:
                        ms, reason = measure(run), None
                    except RuntimeError as error:
                        reason = str(error).splitlines()[0]
                if against := [str(w.message) for w in said or [] if "determinis" in str(w.message)]:
                    reason = against[0].splitlines()[0]
                if reason is None:
                    times.append((ms, name))
                else:
                    print(f"  {name}: {reason}", file=sys.stderr)
        if not times:
            kind = "deterministic attention" if deterministic else "attention"
            raise RuntimeError(f"torch has no {kind} for these tensors by {' or '.join(BACKENDS)}")
        return min(times)

    @classmethod
    def forward(cls, measure, q, k, v, causal=True):
        return cls.fastest(measure, lambda: cls.call(q, k, v, causal))

    @classmethod
    def forward_backward(cls, measure, q, k, v, dout, deterministic=False):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return cls.fastest(measure, lambda: torch.autograd.grad(cls.call(*leaves, True), leaves, dout), deterministic)
