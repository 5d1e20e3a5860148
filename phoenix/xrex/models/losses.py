"""The loss of several actions at once."""

import jax.numpy as jnp
import optax


def multi_task_loss(logits_BCA, labels_BCA, mask_BCA, weight_B, action_weights_A):
    """Sigmoid cross-entropy summed over actions and candidates, masked and weighted; and what to divide it by.

    logits, labels float32[B, C, A], mask bool[B, C, A] (false: not observed), weight float32[B] (0: padding row),
    action_weights float32[A].
    Returns (loss sum, weight sum): the loss is their quotient once both are summed over all devices; the weight counts each
    candidate that has at least one observed action with its row's weight.
    """
    losses = optax.sigmoid_binary_cross_entropy(logits_BCA, labels_BCA) * mask_BCA * action_weights_A
    observed_BC = jnp.any(mask_BCA, axis=-1)
    return jnp.sum(losses * weight_B[:, None, None]), jnp.sum(observed_BC * weight_B[:, None])
