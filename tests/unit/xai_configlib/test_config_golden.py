"""Saved configs stay readable, and say the same when they are saved again."""

from pathlib import Path

from xai_configlib import Config
from xrex.train.config import TrainerConfig

GOLDEN = Path(__file__).parents[2] / "fixtures" / "trainer_config_v1.json"


def test_the_quickstarts_config_as_saved_in_version_1_loads_and_is_saved_byte_for_byte():
    """A field was added? Its default must be what the trainer did before; then add its line to the golden file.

    A field was renamed, moved or its meaning changed? Raise the version of TrainerConfig, add a @migration, and let
    this file be: it then shall be read as what it meant.
    """
    text = GOLDEN.read_bytes()
    assert TrainerConfig.from_json(text, source=GOLDEN.name).to_json().encode() == text
    assert Config.from_json(text) == TrainerConfig.from_json(text)
