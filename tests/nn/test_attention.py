"""Attention gives the numbers of PyTorch's, with the mask that says which steps are seen."""

import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tests.nn.checks import B, agree, numbers, torch
from tests.nn.test_rope import rotated

T = 7


def reference(heads, kv_heads, head_size, window=T, sinks=0, rope=None, scale=None):
    """Attention by torch.nn.functional for x (B, T, size), start (B, T), all steps alike, and position (B, T)."""

    def attention(x, start=None, position=None, **weights):
        def project(name, x):
            return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

        def split(y, heads):
            return y.reshape(B, T, heads, head_size).transpose(1, 2)

        if "qkv_proj.weight" in weights:
            sizes = [heads * head_size, kv_heads * head_size, kv_heads * head_size]
            q, k, v = project("qkv_proj", x).split(sizes, -1)
        else:
            q, k, v = (project(name, x) for name in ("q_proj", "k_proj", "v_proj"))
        q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
        if "q_norm.weight" in weights:
            q, k = (
                torch.nn.functional.rms_norm(y, (head_size,), weights[f"{name}.weight"], 1e-6)
                for y, name in ((q, "q_norm"), (k, "k_norm"))
            )
        query, key = torch.arange(T)[:, None], torch.arange(T)
        first = torch.zeros(B, 1, 1, 1) if start is None else start[:, 0, None, None, None]
        seen = (key <= query) & (key >= first) & ((key > query - window) | (key < first + sinks))
        if rope is not None:
            steps = torch.arange(T) - first[:, :, 0] if position is None else position[:, None]
            q, k = rotated(q, steps, rope), rotated(k, steps, rope)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True, scale=scale)
        return project("o_proj", y.transpose(1, 2).reshape(B, T, heads * head_size))

    return attention


def attend(net, t, x):
    return net(x, t)


def test_causal():
    agree(nn.Attention(6, 2), reference(2, 2, 3), numbers(B, T, 6), call=attend)


def test_grouped_queries_biases_and_scale():
    agree(
        nn.Attention(6, heads=4, kv_heads=2, head_size=3, bias=True, out_bias=False, scale=0.3),
        reference(4, 2, 3, scale=0.3),
        numbers(B, T, 6),
        call=attend,
    )


def test_one_product_for_queries_keys_and_values():
    agree(
        nn.Attention(6, heads=4, kv_heads=2, head_size=3, bias=True, fused=True),
        reference(4, 2, 3),
        numbers(B, T, 6),
        call=attend,
    )


def test_queries_and_keys_with_norms():
    agree(
        nn.Attention(6, 2, 1, 4, rope=nn.RoPE(4, 100.0), q_norm=nn.RMSNorm(4), k_norm=nn.RMSNorm(4)),
        reference(2, 1, 4, rope=100.0),
        numbers(B, T, 6),
        call=attend,
        tolerance=1e-5,
    )


def test_rope():
    rope = nn.RoPE(4, theta=100.0)
    agree(
        nn.Attention(8, heads=2, kv_heads=1, rope=rope),
        reference(2, 1, 4, rope=100.0),
        numbers(B, T, 8),
        call=attend,
        tolerance=1e-5,
    )


@pytest.mark.parametrize("window", [1, 3, T + 2])
def test_sliding_window(window):
    agree(nn.Attention(4, 2, window=window), reference(2, 2, 2, window), numbers(B, T, 4), call=attend)


@pytest.mark.parametrize("window, sinks", [(1, 1), (2, 3), (3, 1), (T, 2), (2, T + 1)])
def test_window_with_sinks(window, sinks):
    agree(
        nn.Attention(4, 2, window=window, sinks=sinks),
        reference(2, 2, 2, window, sinks),
        numbers(B, T, 4),
        call=attend,
    )


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"window": 2, "sinks": 2}], ids=["all", "window", "sinks"])
def test_left_padding(options):
    starts = np.array([0, 3], np.int32)
    padded = reference(4, 2, 2, rope=100.0, **options)

    def expected(x, start, **weights):
        # Steps before the start mean nothing, so nobody may look at them.
        counts = torch.from_numpy(np.arange(T) >= starts[:, None])
        return torch.nan_to_num(padded(x, start, **weights)) * counts[..., None]

    agree(
        nn.Attention(4, heads=4, kv_heads=2, head_size=2, rope=nn.RoPE(2, theta=100.0), **options),
        expected,
        numbers(B, T, 4),
        np.repeat(starts[:, None], T, axis=1),
        call=lambda net, t, x, start: net(x, t, start=start[..., 0]) * (t.value >= start).astype("float64"),
        tolerance=1e-5,
    )


def test_positions():
    agree(
        nn.Attention(4, heads=2, rope=nn.RoPE(2, theta=100.0)),
        lambda x, position, **weights: reference(2, 2, 2, rope=100.0)(x, position=position, **weights),
        numbers(B, T, 4),
        np.random.default_rng(0).integers(0, 50, (B, T)),
        call=lambda net, t, x, position: net(x, t, position=position),
        tolerance=1e-5,
    )


def test_sequences_are_no_axis() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", (3, 4), t)
        with pytest.raises(tp.errors.ShapeError) as error:
            nn.Attention(4, 2).declare(prog, "attention")(x, t)
    assert error.value.message == "Attention: x has 2 axes, expected one of features"
