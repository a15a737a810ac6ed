"""Rotary position embedding, half-split layout, with YaRN, linear or llama3 scaling; src/nn/rope.h has the formulas."""

import math

import torch
from torch import Tensor

from .config import Llama3RopeConfig, RopeConfig, YarnConfig


def _ramp(size: int, theta: float, yarn: YarnConfig) -> list[float]:
    """How far each dimension pair is interpolated: 0 keeps its frequency, 1 divides it by the factor."""

    def dimension_of(rotations: float) -> float:
        return size * math.log(yarn.original_length / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low, high = dimension_of(yarn.beta_fast), dimension_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if high <= low:
        high = low + 1e-3  # a step instead of a division by zero
    return [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(size // 2)]


def _llama3(frequency: float, llama3: Llama3RopeConfig) -> float:
    rotations = llama3.original_length * frequency / (2 * math.pi)
    kept = (rotations - llama3.low_freq_factor) / (llama3.high_freq_factor - llama3.low_freq_factor)
    kept = min(max(kept, 0.0), 1.0)
    return frequency * (kept + (1 - kept) / llama3.factor)


class Rope:
    """Frequencies of `size` rotated dimensions. with_attention_factor False leaves YaRN's factor at 1."""

    def __init__(self, size: int, config: RopeConfig, with_attention_factor: bool):
        self.frequencies = [config.theta ** (-2.0 * i / size) for i in range(size // 2)]
        self.factor = config.yarn.scale_of_attention() if with_attention_factor else 1.0
        if config.linear_factor != 1:
            self.frequencies = [w / config.linear_factor for w in self.frequencies]
        if config.llama3.factor != 1:
            self.frequencies = [_llama3(w, config.llama3) for w in self.frequencies]
        if config.yarn.factor != 1:
            ramp = _ramp(size, config.theta, config.yarn)
            self.frequencies = [w * ((1 - r) + r / config.yarn.factor) for w, r in zip(self.frequencies, ramp)]

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin for positions [T] and inputs of this type, Real [T, size / 2].

        Angles in float64: at position 131,071 a float32 angle would be off by some 2^-8 radians.
        """
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=positions.device)
        angles = positions.to(torch.float64).unsqueeze(1) * frequencies
        real = torch.float64 if dtype == torch.float64 else torch.float32
        cos, sin = angles.cos(), angles.sin()
        if self.factor != 1:
            cos, sin = cos * self.factor, sin * self.factor
        return cos.to(real), sin.to(real)
