"""`_read_checkpoint_kafka_config(ctx)`: the topic and the partition count that a checkpoint's config names."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from xai_configlib import ConfigError
from xrex.data.config import DatasetConfig
from xrex.schema.specs import FeatureSpec
from xrex.train.config import TrainerConfig
from xrex.train.trainer_recsys import _CONFIG_FILENAME, _read_checkpoint_kafka_config

PRICE = FeatureSpec(name="price", group="candidate", column="price", kind="float")


def context(path):
    return SimpleNamespace(checkpoint=SimpleNamespace(path=path))


def read(folder: Path, content) -> tuple:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return _read_checkpoint_kafka_config(context(folder))


def refused(folder: Path, content) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, content)
    assert str(folder / "config.json") in str(caught.value)
    return str(caught.value)


def test_the_file_is_config_json():
    assert _CONFIG_FILENAME == "config.json"


def test_a_whole_config_and_a_dataset_section_alone_say_the_same(tmp_path):
    dataset = {"topic_name": "engagements", "num_kafka_partitions": 16}
    assert read(tmp_path, {"dataset": dataset, "model": {}}) == ("engagements", 16)
    assert read(tmp_path, dataset) == ("engagements", 16)


def test_what_the_trainer_writes_is_read(tmp_path):
    dataset = DatasetConfig(
        topic_name="clicks", num_kafka_partitions=2, tables=(), features=(PRICE,), actions=("click",)
    )
    assert read(tmp_path, TrainerConfig(dataset=dataset).to_json()) == ("clicks", 2)


def test_the_path_may_be_text(tmp_path):
    read(tmp_path, {"topic_name": "clicks"})
    assert _read_checkpoint_kafka_config(context(str(tmp_path))) == ("clicks", None)


def test_no_file_and_no_folder_are_no_answer(tmp_path):
    assert _read_checkpoint_kafka_config(context(tmp_path)) == (None, None)
    assert _read_checkpoint_kafka_config(context(tmp_path / "gone")) == (None, None)


def test_a_field_that_is_not_there_is_none(tmp_path):
    assert read(tmp_path, {"dataset": {"topic_name": "clicks"}}) == ("clicks", None)
    assert read(tmp_path, {"dataset": {"num_kafka_partitions": 3}}) == (None, 3)
    assert read(tmp_path, {"model": {}}) == (None, None)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    assert read(tmp_path, b'\xef\xbb\xbf{"topic_name": "clicks", "num_kafka_partitions": 1}') == ("clicks", 1)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"a": 1, "a": 2}', "\0\0"])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    refused(tmp_path, text)


def test_bytes_that_are_no_text_and_a_folder_in_the_files_place_are_refused(tmp_path):
    refused(tmp_path, b"\xff\xfe{}")
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read: Is a directory; check the path"):
        _read_checkpoint_kafka_config(context(tmp_path))


@pytest.mark.parametrize(("dataset", "shown"), [(None, "null"), ([], "[]"), ("engagements", "'engagements'"), (3, "3")])
def test_a_dataset_that_is_no_object_is_refused(tmp_path, dataset, shown):
    assert refused(tmp_path, {"dataset": dataset}).endswith(
        f"config.json: dataset = {shown}: expected an object with topic_name and num_kafka_partitions; "
        "restore the file, or choose another checkpoint"
    )


@pytest.mark.parametrize("topic", [None, "", 7, True, ["clicks"], "two words", "x" * 250, "a\nb"])
def test_a_topic_that_is_no_topic_name_is_refused(tmp_path, topic):
    assert "dataset.topic_name = " in refused(tmp_path, {"dataset": {"topic_name": topic}})


@pytest.mark.parametrize("partitions", [None, 0, -1, 2.5, True, "16", []])
def test_a_partition_count_that_is_no_count_is_refused(tmp_path, partitions):
    said = refused(tmp_path, {"dataset": {"num_kafka_partitions": partitions}})
    assert "dataset.num_kafka_partitions = " in said


def test_both_faults_are_reported_at_once(tmp_path):
    said = refused(tmp_path, {"topic_name": "", "num_kafka_partitions": 0})
    assert len(said.splitlines()) == 2
