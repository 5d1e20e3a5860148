"""The rule that updates embedding rows."""

from dataclasses import dataclass

import jax.numpy as jnp


@dataclass(frozen=True)
class RowwiseAdagrad:
    """One Adagrad step that keeps a single accumulator per embedding row.

    Source: Duchi et al. 2011, one scalar per row as in FBGEMM. embeddings/native/kernel.cc does the same.
    """

    learning_rate: float
    epsilon: float

    def __call__(self, rows_UD, grads_UD, accum_U):
        """(rows_UD, accum_U) after the step.

        rows_UD   float32[U, D]  the distinct rows this batch touched
        grads_UD  float32[U, D]  summed over duplicate ids, mean over the global batch
        accum_U   float32[U]     running sum of mean squared gradients; starts at `initial_accumulator`
        """
        # Mean over D, not sum: a learning rate tuned at D=64 then still fits at D=128.
        accum_U = accum_U + jnp.mean(grads_UD**2, axis=-1)
        return rows_UD - self.learning_rate * grads_UD / (jnp.sqrt(accum_U)[:, None] + self.epsilon), accum_U
