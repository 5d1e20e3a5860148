"""The parts of a transformer over short token sequences. B batch, T queries, S keys, D width, N heads, K key/value heads."""

import jax
import jax.numpy as jnp
from flax import nnx


class RMSNorm(nnx.Module):
    """Scale by the root mean square over the last axis, in float32. Source: Zhang and Sennrich 2019."""

    def __init__(self, width: int, epsilon: float):
        self.scale = nnx.Param(jnp.ones((width,)))
        self.epsilon = epsilon

    def __call__(self, x_BTD):
        """float[B, T, D] -> the same shape and dtype."""
        x = x_BTD.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return (x * self.scale[...]).astype(x_BTD.dtype)


def rotate(x_BTNH, positions_BT, base: float):
    """Rotary positions (Su et al. 2021): each pair (x_i, x_{i+H/2}) turns by position / base^(2i/H)."""
    half = x_BTNH.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions_BT[:, :, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x_BTNH.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, rotary_base: float, dtype, rngs: nnx.Rngs):
        head_dim = width // num_heads
        self.rotary_base = rotary_base

        def project(heads):
            return nnx.LinearGeneral(width, (heads, head_dim), use_bias=False, dtype=dtype, rngs=rngs)

        self.query, self.key, self.value = project(num_heads), project(num_kv_heads), project(num_kv_heads)
        self.out = nnx.LinearGeneral(
            (num_heads, head_dim), width, axis=(-2, -1), use_bias=False, dtype=dtype, rngs=rngs
        )

    def __call__(self, queries_BTD, context_BSD, query_positions_BT, positions_BS, mask_BTS):
        """What the queries gather from the context where the mask is true: float[B, T, D]."""
        query = rotate(self.query(queries_BTD), query_positions_BT, self.rotary_base)
        key = rotate(self.key(context_BSD), positions_BS, self.rotary_base)
        heads = jax.nn.dot_product_attention(query, key, self.value(context_BSD), mask=mask_BTS[:, None])
        return self.out(heads)


class FeedForward(nnx.Module):
    """Two matrices with a GELU between them."""

    def __init__(self, width: int, hidden: int, dtype, rngs: nnx.Rngs):
        self.up = nnx.Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(hidden, width, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x_BTD):
        """float[B, T, D] -> float[B, T, D]."""
        return self.down(jax.nn.gelu(self.up(x_BTD)))


class Block(nnx.Module):
    """A pre-norm transformer block whose queries may be the last tokens of its context only."""

    def __init__(self, config, dtype, rngs: nnx.Rngs):
        width, epsilon = config.width, config.norm_epsilon
        self.attention_norm = RMSNorm(width, epsilon)
        self.attention = Attention(width, config.num_heads, config.num_kv_heads, config.rotary_base, dtype, rngs)
        self.feedforward_norm = RMSNorm(width, epsilon)
        self.feedforward = FeedForward(width, round(width * config.feedforward_multiplier), dtype, rngs)

    def __call__(self, tokens_BSD, positions_BS, mask_BSS, last: int):
        """The outputs of the last `last` tokens: float[B, last, D]."""
        context = self.attention_norm(tokens_BSD)
        x = tokens_BSD[:, -last:]
        x = x + self.attention(context[:, -last:], context, positions_BS[:, -last:], positions_BS, mask_BSS[:, -last:])
        return x + self.feedforward(self.feedforward_norm(x))
