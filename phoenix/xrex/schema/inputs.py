"""What a model is built for."""

from dataclasses import dataclass

from xrex.schema.specs import FeatureSpec, TableSpec


@dataclass(frozen=True)
class ModelInputs:
    """The features a model reads, their tables, and the actions it predicts."""

    features: tuple[FeatureSpec, ...]
    tables: tuple[TableSpec, ...]
    num_actions: int
    max_history: int
    max_candidates: int
    history_actions: bool
    """Whether history events carry action bits."""

    def of_group(self, group: str, *kinds: str) -> tuple[FeatureSpec, ...]:
        """The features of a group, of these kinds (all without any), in order."""
        return tuple(f for f in self.features if f.group == group and (not kinds or f.kind in kinds))

    def table(self, feature: FeatureSpec) -> TableSpec:
        """The table of an `id` or `ids` feature."""
        return next(t for t in self.tables if t.name == feature.table)
