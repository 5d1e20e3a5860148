"""Typed, frozen configs: strict reading, canonical JSON, overrides, migrations, differences, reconciliation, schema."""

from xai_configlib.codec import load_text
from xai_configlib.config import Config
from xai_configlib.declare import configclass, field
from xai_configlib.diff import ABSENT, Difference, diff
from xai_configlib.errors import ConfigError, Problem
from xai_configlib.fields import FieldRow, describe
from xai_configlib.migrations import in_order, migrate, migration, move, rename, set_default, split
from xai_configlib.overrides import apply_overrides, overridden_paths, read_overridden
from xai_configlib.provenance import Origin, provenance
from xai_configlib.reconcile import Reconciliation, Row, inherit, reconcile
from xai_configlib.registry import Policy
from xai_configlib.schema import json_schema
from xai_configlib.secrets import SecretRef

__all__ = [
    "ABSENT",
    "Config",
    "ConfigError",
    "Difference",
    "FieldRow",
    "Origin",
    "Policy",
    "Problem",
    "Reconciliation",
    "Row",
    "SecretRef",
    "apply_overrides",
    "configclass",
    "describe",
    "diff",
    "field",
    "in_order",
    "inherit",
    "json_schema",
    "load_text",
    "migrate",
    "migration",
    "move",
    "overridden_paths",
    "provenance",
    "read_overridden",
    "reconcile",
    "rename",
    "set_default",
    "split",
]
