import pytest

from xrex.data import places
from xrex.data.places import Place
from xrex.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (None, None),
        ("earliest", Place("earliest")),
        ("latest", Place("latest")),
        ("timestamp:1700000000123", Place("timestamp", 1_700_000_000_123)),
        ("timestamp:2023-11-14T22:13:20.123Z", Place("timestamp", 1_700_000_000_123)),
        ("timestamp:2023-11-14T23:13:20.123+01:00", Place("timestamp", 1_700_000_000_123)),
    ],
)
def test_a_place_is_read_from_its_words(text, place):
    assert places.start_at(text) == place


def test_a_file_of_positions_is_a_place_to_start_but_not_one_to_go_on(tmp_path):
    file = tmp_path / "positions.json"
    file.write_text("{}")
    assert places.start_at(f"positions:{file}") == Place("positions", file=file)
    with pytest.raises(ConfigError, match=r"no such file; give a step's positions\.json"):
        places.start_at(f"positions:{tmp_path}/gone.json")
    with pytest.raises(ConfigError, match="expected earliest or timestamp:TIME"):
        places.on_lost_offset(f"positions:{file}")


@pytest.mark.parametrize("text", ["end", "", "latest:", "earliest:1", "timestamp", "positions", "Timestamp:1"])
def test_other_words_are_errors_that_list_the_places(text):
    with pytest.raises(
        ConfigError, match=r"--start-at = .*: expected earliest, latest, timestamp:TIME or positions:FILE"
    ):
        places.start_at(text)


@pytest.mark.parametrize(
    "time",
    ["yesterday", "", "2023-11-14", "2023-11-14T22:13:20", "-5", "1e3", "1969-01-01T00:00:00Z", "99999999999999999999"],
)
def test_a_time_that_is_none_or_names_no_zone_is_an_error(time):
    with pytest.raises(ConfigError, match=r"--on-lost-offset = .*TIME is ISO 8601 with a time zone"):
        places.on_lost_offset(f"timestamp:{time}")


def test_losing_records_at_the_end_of_the_log_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="expected earliest or timestamp:TIME"):
        places.on_lost_offset("latest")
