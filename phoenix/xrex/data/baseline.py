"""The predictor to beat: logistic regression on one-hot ids, trained online on the same stream."""

import numpy as np
import pyarrow as pa

from xrex.data.synthetic import sigmoid

COLUMN = "reference_online_lr_click"


def with_online_lr(events: pa.Table) -> pa.Table:
    """Synthetic events with one column more: what the baseline, trained online up to there, said of the click."""
    prediction = online_logistic_regression(synthetic_fields(events), events["click"].to_numpy())
    return events.append_column(COLUMN, pa.array(prediction))


def synthetic_fields(events: pa.Table) -> list[np.ndarray]:
    """The ids that the baseline sees of a synthetic event: user, item, category, position, user x category."""
    user, item, category, position = (events[name].to_numpy() for name in ("user", "item", "category", "position"))
    return [user, item, category, position, user * (category.max() + 1) + category]


def online_logistic_regression(
    fields: list[np.ndarray], labels: np.ndarray, *, learning_rate: float = 0.1, chunk: int = 500, steps: int = 20
) -> np.ndarray:
    """Predictions made before learning, in one pass: predict a chunk, then take `steps` Adagrad steps through it.

    fields   each int64[N], ids >= 0; one weight an id and field, and a bias
    labels   [N], 0 or 1, in time order
    Returns float64[N] probabilities; a row's depends only on the chunks before its own. Adagrad's sums start at 1.
    """
    sizes = [int(field.max()) + 1 for field in fields]
    ids = np.stack(fields, 1) + np.r_[0, np.cumsum(sizes)[:-1]]
    weights, accumulator = np.zeros(sum(sizes)), np.ones(sum(sizes))
    bias, bias_accumulator = 0.0, 1.0
    predictions = np.zeros(len(labels))
    for start in range(0, len(labels), chunk):
        rows = ids[start : start + chunk]
        predictions[start : start + chunk] = sigmoid(weights[rows].sum(1) + bias)
        for picked in np.array_split(np.arange(len(rows)), steps):
            touched, place = np.unique(rows[picked], return_inverse=True)
            error = sigmoid(weights[rows[picked]].sum(1) + bias) - labels[start : start + chunk][picked]
            gradient = np.bincount(place.ravel(), np.repeat(error, len(fields)), len(touched))
            accumulator[touched] += gradient**2
            weights[touched] -= learning_rate * gradient / np.sqrt(accumulator[touched])
            bias_accumulator += error.sum() ** 2
            bias -= learning_rate * error.sum() / bias_accumulator**0.5
    return predictions
