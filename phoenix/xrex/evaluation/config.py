"""Progressive evaluation: every row is scored before it is trained on."""

from xai_configlib import Config, configclass, field


@configclass(policy="may_change")
class EvaluationConfig(Config):
    """How progressive metrics are kept."""

    window_examples: int = field(default=10_000, ge=1)
    """Examples of one window. Summaries join the newest windows that hold a tenth of all examples."""
