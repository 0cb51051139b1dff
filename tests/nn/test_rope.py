"""Rotary embeddings give the numbers of Llama's implementation."""

import numpy as np
import pytest

from tempo import nn
from tests.nn.checks import B, T, agree, numbers, torch


def rotated(x, position, theta):
    """x (..., size) turned by ``position`` (...), written like Llama's in Hugging Face Transformers."""
    size = x.shape[-1]
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2).float() / size))
    angles = position[..., None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    half = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), dim=-1)
    return x * angles.cos() + half * angles.sin()


def test_rope():
    positions = np.arange(B * T, dtype=np.int32).reshape(B, T)
    agree(
        nn.RoPE(6, theta=500.0),
        lambda x, position: rotated(x, position[..., None].expand(B, T, 2), 500.0),
        numbers(B, T, 2, 6),
        positions,
        tolerance=1e-6,
    )


def test_positions_may_be_a_dim():
    agree(
        nn.RoPE(4),
        lambda x: rotated(x, torch.arange(T).expand(B, T), 10000.0),
        numbers(B, T, 4),
        call=lambda net, t, x: net(x, t),
        tolerance=1e-6,
    )


def test_llama3_scaling():
    # Every fourth frequency of Llama 3.2's, as Hugging Face Transformers computes them.
    expected = [1, 0.19392276, 0.037606031, 0.0072926651, 0.00042955671, 8.5702559e-06, 1.6619674e-06, 3.2229329e-07]
    rope = nn.RoPE(64, theta=500000.0, scaling=nn.Llama3Scaling(factor=32.0))
    np.testing.assert_allclose(rope.frequencies[::4], expected, rtol=1e-6)
    # One that fits into the original context 0.6 times, one 2.5 times, one 16 times; 64 / (2 pi) = 10.19.
    scaling = nn.Llama3Scaling(8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    fits = np.array([0.6, 2.5, 16.0])
    np.testing.assert_allclose(scaling(fits * 2 * np.pi / 64) / (2 * np.pi / 64), [0.075, 1.40625, 16.0])


def test_linear_scaling():
    plain, scaled = nn.RoPE(8), nn.RoPE(8, scaling=nn.LinearScaling(4.0))
    np.testing.assert_allclose(4 * scaled.frequencies, plain.frequencies)
    assert scaled.amplitude == 1


@pytest.mark.parametrize(
    ("scaling", "expected", "amplitude"),
    [
        (nn.YarnScaling(4.0, 32768), [5.3753215e-3, 6.0294115e-4, 4.4456985e-5], 1.1386294),
        (
            nn.YarnScaling(4.0, 32768, 16.0, 2.0, 1.5, truncate=False),
            [5.6234132e-3, 5.9567997e-4, 4.4456985e-5],
            1.5,
        ),
        (nn.YarnScaling(0.5, 10**12), [5.6234132e-3, 1e-3, 1.7782794e-4], 1.0),  # no wave is long
    ],
)
def test_yarn_scaling(scaling, expected, amplitude):
    """For the waves of Qwen2.5, as Hugging Face Transformers computes them."""
    rope = nn.RoPE(128, 1e6, scaling)
    np.testing.assert_allclose(rope.frequencies[[24, 32, 40]], expected, rtol=1e-5)
    assert rope.amplitude == pytest.approx(amplitude)


def test_the_amplitude_of_a_scaling():
    scaling = nn.YarnScaling(4.0, 10**9, attention_factor=1.5)
    agree(
        nn.RoPE(4, scaling=scaling),
        lambda x: 1.5 * rotated(x, torch.arange(T).expand(B, T), 10000.0),
        numbers(B, T, 4),
        call=lambda net, t, x: net(x, t),
        tolerance=1e-6,
    )
