"""A stream of impressions with known truth: the probability of every label, given the past, is written beside it.

Per time slice, distinct users each see one item.

    logit(click) = user bias + item bias + taste <p_u, q_i>   what ids can learn
                 + intent                                     a decayed sum of the user's clicks in the item's category:
                                                              needs the history
                 + trend of the item's category               AR(1) by day, with one abrupt switch: needs fresh training
                 + position

`like`, `share` and `long_view` need a click (0 without one); `hide` needs none. Their logits share the items'
factors, so that tasks can help each other. The AUC of a label against its `reference_optimum_` column is the best
possible one, up to sampling noise.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from xrex.data.events import TIME_COLUMN, EventColumns

ACTIONS = ("click", "like", "share", "long_view", "hide")
OPTIMUM = "optimum"
START_MS = 1_735_689_600_000
"""Time of the first slice: 2025-01-01 00:00 UTC. In the past, because brokers refuse times of the future."""

COLUMNS = EventColumns(
    candidate_columns=("item", "category", "position"),
    actions=ACTIONS,
    references=tuple(f"reference_{OPTIMUM}_{action}" for action in ACTIONS),
)
_HEAD_BIAS = {"like": -1.2, "share": -2.6, "long_view": -0.2, "hide": -4.0}
_CLICK_BIAS = -1.6


@dataclass(frozen=True)
class World:
    """What the world is like. The same knobs give the same events."""

    seed: int = 0
    """Another seed is another world."""
    taste: float = 0.4
    """Weight of the user-item factors."""
    intent: float = 7.0
    """Weight of the user's recent clicks in the item's category."""
    drift: float = 0.8
    """Standard deviation of the trend of a category."""
    switch: float = 0.8
    """Share of the days after which the trends change hands."""
    zipf: float = 1.0
    """Exponent of the items' popularity."""
    users: int = 4_000
    items: int = 2_000
    categories: int = 8
    factors: int = 8
    """Dimension of the user-item factors."""
    days: int = 30
    slices: int = 600
    """Points of time, evenly over the days."""
    users_per_slice: int = 500
    """Events of one slice, each of another user."""


class _Latent:
    """What the events are drawn from. The order of the draws is part of the contract: it fixes the world of a seed."""

    def __init__(self, world: World, rng: np.random.Generator):
        users, items, dim = world.users, world.items, world.factors
        self.user_factors = rng.normal(0, 1, (users, dim))
        self.item_factors = rng.normal(0, 1, (items, dim)) / dim**0.5
        self.category = rng.integers(0, world.categories, items)
        self.user_bias, self.item_bias = rng.normal(0, 0.6, users), rng.normal(0, 0.6, items)
        self.log_activity = np.log(rng.permutation(1 / np.arange(1, users + 1) ** 0.6))
        self.popularity = rng.permutation(1 / np.arange(1, items + 1) ** world.zipf)
        # 30 % of the items appear during the stream: cold start.
        self.birth_day = np.where(rng.random(items) < 0.3, rng.random(items) * world.days, 0.0)
        self.trend = _trends(world, rng)
        self.head_factors = {action: rng.normal(0, 0.7, dim) for action in ACTIONS[1:]}
        self.recent_clicks = np.zeros((users, world.categories))


def events(world: World, examples: int | None = None) -> pa.Table:
    """The first `examples` events of the world, in time order; all of it if None.

    Columns: user, item, category, position (0..9), event_time_ms (whole seconds; equal within a slice), the five labels
    (int64 0/1), reference_optimum_ACTION (float64, the true probabilities given the past). More examples than the
    world's slices hold: more slices over the same days.
    """
    if examples is not None and examples > world.slices * world.users_per_slice:
        world = World(**(vars(world) | {"slices": -(-examples // world.users_per_slice)}))
    slices = world.slices if examples is None else -(-examples // world.users_per_slice)
    rng = np.random.default_rng(world.seed)
    latent = _Latent(world, rng)
    parts = [_slice_events(world, latent, rng, world.days * index / world.slices) for index in range(slices)]
    return pa.table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}).slice(0, examples)


def _slice_events(world: World, latent: _Latent, rng: np.random.Generator, day: float) -> dict[str, np.ndarray]:
    size = world.users_per_slice
    user = np.argsort(latent.log_activity + rng.gumbel(size=world.users))[-size:]  # distinct, by activity
    shown = latent.popularity * (latent.birth_day <= day)
    item = rng.choice(world.items, size, p=shown / shown.sum())
    position = rng.integers(0, 10, size)
    probability = _probabilities(world, latent, user, item, position, int(day))
    label = _draw_labels(probability, rng)
    _remember_clicks(latent, user, latent.category[item], label["click"])
    columns = {
        "user": user,
        "item": item,
        "category": latent.category[item],
        "position": position,
        TIME_COLUMN: np.full(size, START_MS + int(day * 86_400) * 1_000),
    }
    return columns | label | {f"reference_{OPTIMUM}_{action}": p for action, p in probability.items()}


def _probabilities(world: World, latent: _Latent, user, item, position, day: int) -> dict[str, np.ndarray]:
    """True probability of each action given the past; for like, share and long_view with the click counted in."""
    category, recent = latent.category[item], latent.recent_clicks[user]
    lasting = world.taste * (latent.user_factors[user] * latent.item_factors[item]).sum(1)
    lasting = lasting + latent.user_bias[user] + latent.item_bias[item]
    intent = world.intent * (latent.recent_clicks[user, category] - recent.mean(1))
    trend = latent.trend[day, category]
    probability = {"click": sigmoid(_CLICK_BIAS + lasting + intent + trend - 0.12 * position)}
    for action in ACTIONS[1:]:
        logit = _HEAD_BIAS[action] + latent.item_factors[item] @ latent.head_factors[action]
        logit = logit + (-0.8 if action == "hide" else 0.5) * lasting + (0.5 * trend if action == "share" else 0)
        probability[action] = sigmoid(logit) * (1 if action == "hide" else probability["click"])
    return probability


def _draw_labels(probability: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    clicked = rng.random(len(probability["click"])) < probability["click"]
    label = {"click": clicked}
    for action in ACTIONS[1:]:
        drawn = rng.random(len(clicked))
        if action == "hide":
            label[action] = drawn < probability[action]
        else:
            label[action] = clicked & (drawn < probability[action] / probability["click"])
    return {action: drawn.astype(np.int64) for action, drawn in label.items()}


def _remember_clicks(latent: _Latent, user: np.ndarray, category: np.ndarray, click: np.ndarray) -> None:
    clicked = click == 1
    latent.recent_clicks[user] *= 0.8
    latent.recent_clicks[user[clicked], category[clicked]] += 0.5


def _trends(world: World, rng: np.random.Generator) -> np.ndarray:
    """float64[days + 1, categories]: a stationary AR(1) by day whose categories are shuffled once."""
    trend = rng.normal(0, world.drift, (world.days + 1, world.categories))
    for day in range(1, world.days + 1):
        trend[day] = 0.9 * trend[day - 1] + (1 - 0.81) ** 0.5 * trend[day]
    trend -= trend.mean(1, keepdims=True)
    switch_day = int(world.switch * world.days)
    trend[switch_day:] = trend[switch_day:][:, rng.permutation(world.categories)]
    return trend


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z))."""
    return 1 / (1 + np.exp(-z))
