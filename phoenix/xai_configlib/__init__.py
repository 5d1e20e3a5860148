"""Typed, frozen configs: strict reading, canonical JSON, overrides, exact differences, reconciliation, provenance."""

from xai_configlib.codec import load_text
from xai_configlib.config import Config, Policy, configclass, field
from xai_configlib.diff import Difference, diff
from xai_configlib.errors import ConfigError, Problem
from xai_configlib.overrides import apply_overrides, overridden_paths, read_overridden
from xai_configlib.provenance import Origin, provenance
from xai_configlib.reconcile import Reconciliation, Row, inherit, reconcile
from xai_configlib.secrets import SecretRef

__all__ = [
    "Config",
    "ConfigError",
    "Difference",
    "Origin",
    "Policy",
    "Problem",
    "Reconciliation",
    "Row",
    "SecretRef",
    "apply_overrides",
    "configclass",
    "diff",
    "field",
    "inherit",
    "load_text",
    "overridden_paths",
    "provenance",
    "read_overridden",
    "reconcile",
]
