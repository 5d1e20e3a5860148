"""Models and their sizes."""

from typing import Literal, Self

from pydantic import model_validator

from xai_configlib import Config, configclass, field


@configclass(policy="must_match")
class RankerConfig(Config):
    """A transformer over [user][history][candidates] with one sigmoid head per action."""

    width: int = field(default=32, ge=1)
    """Size of a token (D)."""

    num_layers: int = field(default=1, ge=1)
    """Transformer blocks. In the last one only candidates ask, since nobody reads the other tokens' outputs."""

    num_heads: int = field(default=2, ge=1)
    """Query heads; twice this must divide `width`, since rotary positions turn pairs of a head's numbers."""

    num_kv_heads: int = field(default=2, ge=1)
    """Key and value heads, shared by groups of query heads; must divide `num_heads`."""

    feedforward_multiplier: float = field(default=2.0, gt=0)
    """Hidden size of the feed-forward part over `width`."""

    norm_epsilon: float = field(default=0.01, gt=0)
    """Inside RMSNorm. Around the squared size of a fresh embedding (0.01 to 0.1) it keeps rows that were never trained small."""

    rotary_base: float = field(default=10_000.0, gt=1)
    """Longest wavelength of the rotary positions."""

    factorization: bool = field(default=True)
    """Add the pairwise products of user fields and candidate to the logits, as a factorization machine does."""

    compute_dtype: Literal["float32", "bfloat16"] = field(policy="may_change", default="float32")
    """Type of activations and matrix products. Weights, tables, norms and logits stay float32."""

    embedding_stddev: float = field(policy="may_change", default=0.02, ge=0)
    """Standard deviation of a fresh embedding row, and of the fresh weights of what is added to such rows (numbers, actions)."""

    action_weights: tuple[float, ...] | None = field(policy="may_change", default=None)
    """Weight of each action's loss, in the order of dataset.actions; null: 1 each."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = []
        if self.width % (2 * self.num_heads):
            problems.append(f"num_heads = {self.num_heads}: twice this must divide width = {self.width}")
        if self.num_heads % self.num_kv_heads:
            problems.append(f"num_kv_heads = {self.num_kv_heads}: must divide num_heads = {self.num_heads}")
        if problems:
            raise ValueError("; ".join(problems))
        return self
