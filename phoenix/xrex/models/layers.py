"""The parts of a transformer over a context and candidates that are judged in it, each by itself.

B batch, S context tokens, C candidates, T tokens, D width, N heads of H numbers, K key/value heads.
"""

from functools import partial
from typing import NamedTuple

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


class Turns(NamedTuple):
    """By how much rotary positions (Su et al. 2021) turn a head's pairs of numbers (x_i, x_{i+H/2}): position / base^(2i/H)."""

    cos: jax.Array  # float32[B, T, 1, H/2]
    sin: jax.Array

    def since(self, first: int) -> "Turns":
        """Of the tokens from `first` on."""
        return Turns(self.cos[:, first:], self.sin[:, first:])


def turns(positions_BT, head_dim: int, base: float) -> Turns:
    """The turns at these positions; once for all layers, since sines cost more than what is done with them."""
    half = head_dim // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions_BT[:, :, None, None].astype(jnp.float32) * frequencies
    return Turns(jnp.cos(angles), jnp.sin(angles))


def rotate(x_BTNH, by: Turns):
    """float[B, T, N, H] with each pair of its numbers turned."""
    a, b = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * by.cos - b * by.sin, a * by.sin + b * by.cos], axis=-1).astype(x_BTNH.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, dtype, rngs: nnx.Rngs):
        head_dim = width // num_heads

        def project(heads):
            return nnx.LinearGeneral(width, (heads, head_dim), use_bias=False, dtype=dtype, rngs=rngs)

        self.query, self.key, self.value = project(num_heads), project(num_kv_heads), project(num_kv_heads)
        self.out = nnx.LinearGeneral(
            (num_heads, head_dim), width, axis=(-2, -1), use_bias=False, dtype=dtype, rngs=rngs
        )

    def __call__(self, tokens_BTD, by: Turns, is_context_BS, *, candidates_only: bool = False):
        """What tokens [context][candidates] gather: float[B, T, D], or float[B, C, D] for the candidates only.

        by             of the tokens' positions
        is_context_BS  bool  which of the first S tokens are there: these see each other, and each candidate sees them and itself
        """
        num_context = is_context_BS.shape[1]
        key = rotate(self.key(tokens_BTD), by)
        value = self.value(tokens_BTD)
        context, own = (key[:, :num_context], value[:, :num_context]), (key[:, num_context:], value[:, num_context:])
        first = num_context if candidates_only else 0
        query = rotate(self.query(tokens_BTD[:, first:]), by.since(first))
        of_candidates = attend_to_context_and_oneself(query[:, num_context - first :], *context, *own, is_context_BS)
        if candidates_only:
            return self.out(of_candidates)
        of_context = jax.nn.dot_product_attention(query[:, :num_context], *context, mask=is_context_BS[:, None, None])
        return self.out(jnp.concatenate([of_context, of_candidates], axis=1))


def attend_to_context_and_oneself(query_BCNH, key_BSKH, value_BSKH, own_key_BCKH, own_value_BCKH, is_context_BS):
    """Attention of candidates that see the context and themselves: float[B, C, N, H].

    Products of two candidates are not made, instead of made and masked. Logits and weights are float32, as in
    jax.nn.dot_product_attention.
    """
    batch, num_candidates, num_heads, head_dim = query_BCNH.shape
    query = query_BCNH.reshape(batch, num_candidates, -1, num_heads // key_BSKH.shape[2], head_dim)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    to_context = product("bckgh,bskh->bkgcs", query, key_BSKH)
    to_oneself = product("bckgh,bckh->bkgc", query, own_key_BCKH)[..., None]
    to_context = jnp.where(is_context_BS[:, None, None, None], to_context, jnp.finfo(jnp.float32).min)
    logits = jnp.concatenate([to_context, to_oneself], axis=-1) * head_dim**-0.5
    weights = jax.nn.softmax(logits, axis=-1).astype(value_BSKH.dtype)
    gathered = jnp.einsum("bkgcs,bskh->bckgh", weights[..., :-1], value_BSKH)
    gathered += jnp.einsum("bkgc,bckh->bckgh", weights[..., -1], own_value_BCKH)
    return gathered.reshape(query_BCNH.shape)


class FeedForward(nnx.Module):
    """Two matrices with a GELU between them."""

    def __init__(self, width: int, hidden: int, dtype, rngs: nnx.Rngs):
        self.up = nnx.Linear(width, hidden, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(hidden, width, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x_BTD):
        """float[B, T, D] -> float[B, T, D]."""
        return self.down(jax.nn.gelu(self.up(x_BTD)))


class Block(nnx.Module):
    """A pre-norm transformer block over [context][candidates]."""

    def __init__(self, config, dtype, rngs: nnx.Rngs):
        width, epsilon = config.width, config.norm_epsilon
        self.attention_norm = RMSNorm(width, epsilon)
        self.attention = Attention(width, config.num_heads, config.num_kv_heads, dtype, rngs)
        self.feedforward_norm = RMSNorm(width, epsilon)
        self.feedforward = FeedForward(width, round(width * config.feedforward_multiplier), dtype, rngs)

    def __call__(self, tokens_BTD, by: Turns, is_context_BS, *, candidates_only: bool = False):
        """The tokens' outputs, or the candidates' only: float[B, T or C, D]."""
        x = tokens_BTD[:, is_context_BS.shape[1] :] if candidates_only else tokens_BTD
        normed = self.attention_norm(tokens_BTD)
        x = x + self.attention(normed, by, is_context_BS, candidates_only=candidates_only)
        return x + self.feedforward(self.feedforward_norm(x))
