"""Whatever classes there are: from_json(to_json(c)) == c, and to_json(from_json(t)) == t for canonical t."""

import json

import pytest
from generated_configs import generated_configs
from hypothesis import HealthCheck, given, settings

from xai_configlib import Config, diff


def check_that_it_comes_back(config):
    canonical = config.to_json()
    again = Config.from_json(canonical.encode())
    assert again == config
    assert hash(again) == hash(config)
    assert again.to_json() == canonical
    assert diff(config, again) == []
    assert Config.from_json(_backwards(json.loads(canonical))) == config  # whatever the order of the keys
    assert Config.from_json(config.to_dict()) == type(config).from_json(canonical) == config


def _backwards(value):
    if isinstance(value, dict):
        return {key: _backwards(item) for key, item in reversed(value.items())}
    return [_backwards(item) for item in value] if isinstance(value, list) else value


@given(generated_configs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_config_of_any_class_comes_back_as_it_was(config):
    check_that_it_comes_back(config)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(generated_configs())
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_config_of_any_of_2000_classes_comes_back_as_it_was(config):
    check_that_it_comes_back(config)
