"""The ranker: [user][history][candidates] in, one logit per candidate and action out."""

import jax.numpy as jnp
from flax import nnx

from xrex.models.config import RankerConfig
from xrex.models.layers import Block, RMSNorm, turns
from xrex.schema.batch import Batch
from xrex.schema.inputs import ModelInputs
from xrex.schema.specs import FeatureSpec


class Tokens(nnx.Module):
    """Turns the features of one group into vectors of the model's width."""

    def __init__(self, group: str, config: RankerConfig, inputs: ModelInputs, dtype, rngs: nnx.Rngs):
        width = config.width
        self.looked_up = [f.name for f in inputs.of_group(group, "id", "ids")]
        self.dense = inputs.of_group(group, "float", "one_hot")
        wide = {f.name: inputs.table(f).embedding_dim for f in inputs.of_group(group, "id", "ids")}
        self.project = nnx.Dict(
            {
                name: nnx.Linear(dim, width, use_bias=False, dtype=dtype, rngs=rngs)
                for name, dim in wide.items()
                if dim != width
            }
        )
        dense_width = sum(f.max_values if f.kind == "one_hot" else 1 for f in self.dense)
        self.dense_projection = small_linear(dense_width, config, dtype, rngs) if dense_width else None
        self.dtype = dtype

    def __call__(self, embedded: dict, features: dict) -> list:
        """One float[..., D] per looked-up feature, and one for all dense features together."""
        vectors = [embedded[name].astype(self.dtype) for name in self.looked_up]
        vectors = [self.project[n](v) if n in self.project else v for n, v in zip(self.looked_up, vectors, strict=True)]
        if self.dense_projection is not None:
            columns = [_as_columns(features[f.name], f) for f in self.dense]
            vectors.append(self.dense_projection(jnp.concatenate(columns, axis=-1).astype(self.dtype)))
        return vectors


def small_linear(inputs: int, config: RankerConfig, dtype, rngs: nnx.Rngs) -> nnx.Linear:
    """Inputs that are no embeddings -> the model's width, at first as small as a fresh embedding row.

    A token is a sum under one norm: at the usual scale of a matrix these inputs would drown the ids for thousands of steps.
    """
    init = nnx.initializers.normal(config.embedding_stddev)
    return nnx.Linear(inputs, config.width, use_bias=False, kernel_init=init, dtype=dtype, rngs=rngs)


def _as_columns(values, feature: FeatureSpec):
    return values[..., None] if feature.kind == "float" else values


class Ranker(nnx.Module):
    """Transformer over a user's fields, history and candidates; a candidate sees the user, the history and itself only.

    Embedding rows come in from outside, so that no gradient ever has the size of a table.
    """

    def __init__(self, config: RankerConfig, inputs: ModelInputs, rngs: nnx.Rngs):
        dtype, width = jnp.dtype(config.compute_dtype), config.width
        self.user = Tokens("user", config, inputs, dtype, rngs)
        self.history = Tokens("history", config, inputs, dtype, rngs)
        self.candidate = Tokens("candidate", config, inputs, dtype, rngs)
        self.actions = small_linear(inputs.num_actions, config, dtype, rngs) if inputs.history_actions else None
        self.history_type = nnx.Param(jnp.zeros((width,)))
        self.candidate_type = nnx.Param(jnp.zeros((width,)))
        self.blocks = nnx.List([Block(config, dtype, rngs) for _ in range(config.num_layers)])
        self.final_norm = RMSNorm(width, config.norm_epsilon)
        self.interaction = nnx.Param(jnp.ones((width, inputs.num_actions))) if config.factorization else None
        self.head = nnx.Linear(
            width, inputs.num_actions, kernel_init=nnx.initializers.normal(0.1 * width**-0.5), rngs=rngs
        )
        self.dtype, self.head_dim, self.rotary_base = dtype, width // config.num_heads, config.rotary_base

    def __call__(self, embedded: dict[str, dict], batch: Batch):
        """Logits float32[B, C, A].

        embedded  {"user" | "history" | "candidates": {feature: float32[B(, L), dim]}}, summed over an id's rows, 0 = padding
        """
        user, history, candidates = self._tokens(embedded, batch)
        tokens = jnp.concatenate([user, history, candidates], axis=1)
        positions, is_context = token_places(user.shape[1], batch.history_length, history.shape[1], candidates.shape[1])
        by = turns(positions, self.head_dim, self.rotary_base)
        for block in self.blocks[:-1]:
            tokens = block(tokens, by, is_context)
        asked = self.blocks[-1](tokens, by, is_context, candidates_only=True)
        logits = self.head(self.final_norm(asked).astype(jnp.float32))
        if self.interaction is not None:
            logits += pairwise(user, candidates).astype(jnp.float32) @ self.interaction[...]
        return logits

    def _tokens(self, embedded: dict[str, dict], batch: Batch):
        """float[B, user fields, D], float[B, H, D], float[B, C, D]."""
        rows, actions = batch.weight.shape[0], batch.history_actions
        width = self.candidate_type.shape[0]
        user = self.user(embedded["user"], batch.user)
        history = self.history(embedded["history"], batch.history)
        if self.actions is not None:
            history.append(self.actions(actions.astype(self.dtype)))
        candidates = self.candidate(embedded["candidates"], batch.candidates)
        no_history = jnp.zeros((*actions.shape[:2], width), self.dtype)
        return (
            jnp.stack(user, axis=1) if user else jnp.zeros((rows, 0, width), self.dtype),
            sum(history, no_history) + self.history_type[...].astype(self.dtype),
            sum(candidates) + self.candidate_type[...].astype(self.dtype),
        )


def pairwise(user_BFD, candidates_BCD):
    """Elementwise products of all pairs of a user's fields and a candidate, summed: float[B, C, D].

    The second-order term of a factorization machine (Rendle 2010), one weight a dimension and action instead of one in all.
    """
    total_BCD = jnp.sum(user_BFD, axis=1)[:, None] + candidates_BCD
    squares_BCD = jnp.sum(user_BFD**2, axis=1)[:, None] + candidates_BCD**2
    return 0.5 * (total_BCD**2 - squares_BCD)


def token_places(num_user: int, history_length_B, max_history: int, max_candidates: int):
    """Positions int32[B, T] of [user][history][candidates], and bool[B, S], which of the first two are there.

    User and history tokens attend to each other in both directions; a candidate attends to them and to itself, never to
    another candidate, so its score does not depend on what else was shown. All candidates stand at position 0, events at -1
    (the newest), -2, ..., user fields at 1, 2, ...: neither a history's length nor the shape it is padded to moves anything.
    """
    rows = history_length_B.shape[0]
    user = jnp.broadcast_to(1 + jnp.arange(num_user), (rows, num_user))
    event = jnp.arange(max_history)[None]
    history = event - history_length_B[:, None]
    candidate = jnp.zeros((rows, max_candidates), jnp.int32)
    positions = jnp.concatenate([user, history, candidate], axis=1).astype(jnp.int32)
    is_context = jnp.concatenate([jnp.ones((rows, num_user), bool), event < history_length_B[:, None]], axis=1)
    return positions, is_context
