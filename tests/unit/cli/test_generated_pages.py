"""What `make docs` writes is what the code says today."""

import json
from pathlib import Path

import pytest

from xai_configlib import describe, json_schema
from xrex.report.config_page import config_page
from xrex.train.config import TrainerConfig

ROOT = Path(__file__).parents[3]


def test_docs_config_md_lists_the_fields_of_today():
    page = (ROOT / "docs" / "config.md").read_text()
    assert page == config_page(describe(TrainerConfig)), "run make docs"
    for row in describe(TrainerConfig):
        assert f"`{row.path}`" in page or f"## {row.path}\n" in page


def test_the_schema_beside_the_configs_is_todays():
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == json_schema(TrainerConfig), "run make docs"


@pytest.mark.parametrize("name", ["quickstart", "ranker_kafka", "movielens"])
def test_every_config_names_the_schema(name):
    assert (ROOT / "configs" / f"{name}.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")
