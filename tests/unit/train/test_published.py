"""A config.json of the published production trainer becomes a config of ours, and every value of it is accounted for."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xai_configlib import ConfigError, SecretRef
from xrex.data.config import DatasetConfig
from xrex.data.log.config import DirectoryLog, KafkaLog
from xrex.data.log.security import client_settings
from xrex.train import published
from xrex.train.config import TrainerConfig
from xrex.train.published import Line, Verdict, import_published

FIXTURE = Path(__file__).parents[2] / "fixtures" / "published_config.json"
PASSWORD = "hunter2-and-more"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\n"
HASH_KEYS = "dataset.hash_table.hash_keys"
REMOVED = object()


def file_with(changes=None) -> dict:
    """The fixture with some dotted paths changed, added or (REMOVED) left out."""
    mapping = json.loads(FIXTURE.read_text())
    for path, value in (changes or {}).items():
        *sections, name = path.split(".")
        node = mapping
        for section in sections:
            node = node[section]
        if value is REMOVED:
            del node[name]
        else:
            node[name] = value
    return mapping


def imported(changes=None):
    return import_published(file_with(changes), "config.json")


def line(result, source) -> Line:
    (found,) = [line for line in result.lines if line.source == source]
    return found


def refused(mapping) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        import_published(mapping, "config.json")
    return str(caught.value).splitlines()


def values_of(node, path=()):
    """(steps, value) of whatever holds nothing below it; a list of plain values is one value."""
    items = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
    if not items or (isinstance(node, list) and not any(isinstance(item, dict | list) for item in node)):
        yield path, node
        return
    for step, item in items:
        yield from values_of(item, (*path, step))


def spelled(steps) -> str:
    """Steps as a dotted path."""
    plain = r"[A-Za-z_][A-Za-z0-9_]*"
    parts = [f"[{s}]" if isinstance(s, int) else f".{s if re.fullmatch(plain, s) else json.dumps(s)}" for s in steps]
    return "".join(parts).removeprefix(".")


def value_at(node, path):
    for step in path.split("."):
        node = node[step]
    return node


# The report


def test_every_value_of_the_file_has_one_line_in_the_order_of_the_file():
    expected = [spelled(steps) for steps, _ in values_of(file_with())]
    assert [line.source for line in imported().lines] == expected
    assert len(set(expected)) == len(expected) > 100


def test_what_was_taken_has_the_same_value_on_both_sides():
    result = imported()
    taken = [line for line in result.lines if line.verdict == "taken" and "[*]" not in line.target]
    assert len(taken) > 15
    for one in taken:
        assert value_at(result.config.to_dict(), one.target) == value_at(file_with(), one.source), one
        assert one.why == ""


def test_only_what_was_not_ignored_has_a_target_and_whatever_was_not_taken_has_a_reason():
    for one in imported().lines:
        assert one.verdict in get_args(Verdict)
        assert bool(one.target) == (one.verdict != "ignored"), one
        assert bool(one.why) == (one.verdict != "taken"), one


def test_values_that_only_the_run_needed_are_runtime_state():
    found = {line.source for line in imported().lines if line.why == "runtime state"}
    assert found == {
        "dataset._logged_schema",
        "dataset.is_alive",
        'dataset.seek_to_offset."0"',
        'dataset.seek_to_offset."7"',
        'dataset.offset_ptr."0"',
        'dataset.offset_ptr."7"',
        'offsets_to_commit."0"',
    }


def test_what_has_no_counterpart_says_so():
    result = imported()
    assert line(result, "model_config.log_q_correction") == Line(
        "model_config.log_q_correction", "ignored", "", "no counterpart here"
    )
    assert "gate" in line(result, "model_config.model_config.ffn_config.gated_mlp").why
    assert "docs/data.md" in line(result, "dataset.__class").why


# The config


def test_the_config_is_the_one_that_the_fixture_stands_for():
    config = imported().config
    dataset, model, dense = config.dataset, config.model, config.optimizer.dense
    assert (dataset.topic_name, dataset.num_kafka_partitions) == ("engagements", 8)
    assert (dataset.max_history, dataset.max_candidates) == (126, 16)
    assert dataset.actions == tuple(f"action_{index:02}" for index in range(60))
    assert (model.num_layers, model.width, model.num_heads, model.num_kv_heads) == (4, 256, 4, 2)
    assert (model.feedforward_multiplier, model.compute_dtype) == (2.0, "bfloat16")
    assert (dense.learning_rate, dense.warmup_steps, dense.decay_steps) == (0.002, 0, None)  # constant there
    assert (dense.b1, dense.b2, dense.weight_decay, dense.clip_norm) == (0.95, 0.98, 0.001, 1.0)
    sparse = config.optimizer.sparse
    assert (sparse.learning_rate, sparse.epsilon, sparse.initial_accumulator) == (0.1, 1e-10, 0.0)
    assert (config.trainer.name, config.trainer.seed, config.trainer.max_steps) == ("home_ranker", 42, 3_000_000_000)
    assert config.trainer.global_batch_size == 32 * 2 * 4
    assert (config.checkpoint.save_every_steps, config.checkpoint.keep_last) == (150, 10)
    assert config.checkpoint.keep_every == 100 * 150  # every hundredth save there, these steps here
    assert config.mesh.num_devices is None


def test_the_config_reads_back_equal():
    config = imported().config
    assert TrainerConfig.from_json(config.to_json()) == config


def test_vocabulary_sizes_become_tables_and_the_features_of_our_rows():
    dataset = imported().config.dataset
    sizes = [(table.name, table.num_embeddings, table.embedding_dim, table.num_hashes) for table in dataset.tables]
    assert sizes == [("users", 5000, 64, 2), ("items", 4000, 64, 2), ("authors", 3000, 64, 2), ("ips", 2000, 64, 2)]
    assert [(feature.group, feature.column, feature.table) for feature in dataset.features] == [
        ("user", "user", "users"),
        ("user", "ip", "ips"),
        ("history", "history_item", "items"),
        ("history", "history_author", "authors"),
        ("candidate", "item", "items"),
        ("candidate", "author", "authors"),
    ]
    assert [feature.column for feature in dataset.features if not feature.required] == ["ip"]


def test_the_report_says_that_trained_tables_cannot_be_carried_over():
    for entity in ("user", "item", "author", "ip"):
        for key in ("id_table_size", "hash_scales"):
            one = line(imported(), f"{HASH_KEYS}.{entity}_{key}")
            assert (one.verdict, "cannot be carried over" in one.why) == ("translated", True)


def test_a_vocabulary_of_size_0_makes_no_table_and_no_feature():
    changes = {f"{HASH_KEYS}.{entity}_id_table_size": 0 for entity in ("user", "item", "ip")}
    result = imported(changes)
    assert [table.name for table in result.config.dataset.tables] == ["authors"]
    assert [feature.name for feature in result.config.dataset.features] == ["past_author", "author"]
    assert line(result, f"{HASH_KEYS}.item_id_table_size").verdict == "ignored"


def test_a_vocabulary_without_a_size_makes_no_table_either():
    result = imported({f"{HASH_KEYS}.ip_id_table_size": None, f"{HASH_KEYS}.user_hash_scales": REMOVED})
    sizes = [(table.name, table.num_hashes) for table in result.config.dataset.tables]
    assert sizes == [("users", 2), ("items", 2), ("authors", 2)]
    assert line(result, f"{HASH_KEYS}.ip_id_table_size").verdict == "ignored"


def test_one_hash_there_is_one_salt_here():
    (users, *_) = imported({f"{HASH_KEYS}.user_hash_scales": [11]}).config.dataset.tables
    assert users.num_hashes == 1


def test_without_a_hash_table_of_its_own_the_dataset_uses_the_models():
    result = imported({"dataset.hash_table": REMOVED})
    assert result.config == imported().config
    assert line(result, "model_config.hash_table.hash_keys.user_id_table_size").verdict == "translated"


def test_a_value_that_stands_twice_is_read_once_and_a_difference_is_told():
    result = imported({"model_config.history_seq_len": 62})
    assert result.config.dataset.max_history == 126
    assert line(result, "model_config.history_seq_len").why == "differs from dataset.history_seq_len, which is read"
    same = line(result, "model_config.model_config.attn_config.history_seq_len")
    assert same.why == "a copy: dataset.history_seq_len is read"


@pytest.mark.parametrize(("rows", "batch_size"), [(32, 256), (0.5, 4), (1.0, 8)])
def test_rows_a_device_may_be_a_fraction(rows, batch_size):
    assert imported({"bs_per_device": rows}).config.trainer.global_batch_size == batch_size


def test_without_rows_a_device_the_batch_keeps_its_default():
    result = imported({"bs_per_device": REMOVED})
    assert result.config.trainer.global_batch_size == 128
    assert line(result, "parallel_config.ep").verdict == "ignored"


def test_a_name_that_no_folder_can_have_is_changed_and_told():
    result = imported({"name": "home/ranker v2 " + "x" * 80})
    assert result.config.trainer.name == ("home-ranker-v2-" + "x" * 80)[:64]
    assert line(result, "name").verdict == "translated"
    assert imported({"name": "//"}).config.trainer.name == "ranker"


def test_another_model_than_the_ranker_gives_its_sizes_only_and_the_report_says_so():
    result = imported({"model_config.__class": "xrex.models.recsys_two_tower_model.RecsysTwoTowerModelConfig"})
    assert result.config == imported().config
    assert "only its sizes are read" in line(result, "model_config.__class").why


def test_blanks_between_brokers_are_dropped_and_told():
    result = imported({"dataset.bootstrap_servers": " broker-1.example:9093, broker-2.example:9093"})
    assert result.config == imported().config
    assert line(result, "dataset.bootstrap_servers").verdict == "translated"


def test_heads_of_another_size_are_told():
    head = "model_config.model_config.attn_config.key_size"
    assert "as many as there" in line(imported(), head).why
    assert "another number than there" in line(imported({head: 128}), head).why


def test_null_and_0_leave_the_default():
    changes = {"max_steps": None, "optim_config.b1": None, "checkpoint_config.checkpoint_every_n": 0}
    config = imported(changes).config
    assert (config.trainer.max_steps, config.optimizer.dense.b1) == (None, 0.9)
    assert (config.checkpoint.save_every_steps, config.checkpoint.keep_every) == (1_000, None)


@pytest.mark.parametrize("level", [0, 1, 3, True, "2"])
def test_another_precision_than_bfloat16_over_float32_is_not_taken(level):
    result = imported({"precision_level": level})
    assert result.config.model.compute_dtype == "float32"
    assert line(result, "precision_level").verdict == "ignored"


# Optimizers


def test_beside_a_schedule_the_optimizers_own_rate_is_not_read():
    result = imported({"optim_config.learning_rate": {"__class": "a.Schedule"}})
    assert result.config == imported().config
    assert line(imported(), "optim_config.learning_rate").verdict == "ignored"


def test_muon_becomes_adamw_and_every_line_of_it_says_so():
    result = imported({"optim_config.optim": "muon"})
    assert result.config.optimizer == imported().config.optimizer
    for source in ("optim_config.optim", "optim_config.b1", "lr_schedule_in_samples_config.learning_rate"):
        one = line(result, source)
        assert (one.verdict, "muon" in one.why, "AdamW" in one.why) == ("translated", True, True)


def test_without_a_schedule_the_optimizers_own_rate_is_taken():
    result = imported({"lr_schedule_in_samples_config": None, "optim_config.learning_rate": 0.003})
    assert result.config.optimizer.dense.learning_rate == 0.003
    assert result.config.optimizer.dense.warmup_steps == 0


def test_a_schedule_that_is_not_constant_is_not_guessed_at():
    result = imported({"lr_schedule_in_samples_config.__class": "a.b.CosineSampleSchedule"})
    dense = result.config.optimizer.dense
    assert (dense.learning_rate, dense.warmup_steps) == (0.001, 100)
    for source in ("lr_schedule_in_samples_config.learning_rate", "optim_config.learning_rate"):
        one = line(result, source)
        assert (one.verdict, "warmup_steps" in one.why) == ("ignored", True)


# The source, and secrets


def test_brokers_are_spoken_to_by_sasl_over_tls_with_a_password_from_the_environment(monkeypatch):
    log = imported().config.dataset.log
    assert isinstance(log, KafkaLog)
    assert log.bootstrap_servers == "broker-1.example:9093,broker-2.example:9093"
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    used = client_settings(log)
    assert (used["security_protocol"], used["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (used["sasl_plain_username"], used["sasl_plain_password"]) == ("trainer", PASSWORD)
    assert (
        'the password is referred to as {"env": "KAFKA_PASSWORD"}'
        in line(imported(), "dataset.sasl_plain_username").why
    )


@pytest.mark.parametrize("secret", [PASSWORD, 20250131, [PASSWORD], {"value": PASSWORD}])
def test_a_password_in_the_file_is_neither_taken_nor_shown(secret):
    result = imported({"dataset.sasl_plain_password": secret})
    for shown in (repr(result), result.config.to_json()):
        assert PASSWORD not in shown
        assert "20250131" not in shown
    (one,) = [one for one in result.lines if one.source.startswith("dataset.sasl_plain_password")]
    if not isinstance(secret, dict):
        assert (one.verdict, one.target) == ("translated", "dataset.log.security.password")
        assert one.why == 'never carried over: the password is referred to as {"env": "KAFKA_PASSWORD"}'
    assert result.config.dataset.log.security.password.to_value() == {"env": "KAFKA_PASSWORD"}


def test_key_text_is_neither_taken_nor_shown_wherever_it_stands():
    places = ("dataset.ssl_cafile", "dataset.ssl_keyfile", "dataset.group_id", "name", "optim_config.optim", "load")
    result = imported(dict.fromkeys(places, PEM))
    assert "MIIabc" not in repr(result)
    for source in places:
        assert line(result, source) == Line(source, "ignored", "", "may be a secret: never carried over")
    assert result.config.dataset.log.security.ca_file is None


@pytest.mark.parametrize("name", ["api_token", "ssl_key_text", "client_secret", "aws_credentials"])
def test_a_name_that_sounds_like_a_secret_is_enough(name):
    assert line(imported({name: "abc"}), name).why == "may be a secret: never carried over"
    assert line(imported({name: 7}), name).why == "no counterpart here"  # as pad_token


def test_secrets_are_not_shown_by_problems_either():
    lines = refused(
        file_with({"dataset.topic_name": PEM, "dataset.bootstrap_servers": f"u:{PASSWORD}@broker.example:1"})
    )
    assert lines == [
        "config.json: dataset.topic_name: missing; expected the name of the topic to read; "
        "correct it in a copy of the file; it becomes dataset.topic_name",
        "config.json: dataset.bootstrap_servers: expected HOST:PORT[,HOST:PORT], without user and password; "
        "correct it in a copy of the file; it becomes dataset.log.bootstrap_servers",
    ]


def test_a_protocol_that_is_named_is_taken():
    log = imported({"dataset.security_protocol": "PLAINTEXT", "dataset.ssl_cafile": "/etc/ca.pem"}).config.dataset.log
    assert isinstance(log, KafkaLog)
    assert (log.security.protocol, log.security.password, log.security.ca_file) == ("PLAINTEXT", None, "/etc/ca.pem")


def test_without_sasl_settings_the_brokers_are_spoken_to_in_the_clear():
    log = imported({"dataset.sasl_mechanism": REMOVED, "dataset.sasl_plain_username": ""}).config.dataset.log
    assert isinstance(log, KafkaLog)
    assert (log.security.protocol, log.security.username, log.security.password) == ("PLAINTEXT", None, None)


@pytest.mark.parametrize("servers", ["", None, REMOVED])
def test_without_brokers_the_source_stays_a_folder_and_the_report_says_so(servers):
    result = imported({"dataset.bootstrap_servers": servers, "dataset.sasl_plain_password": PASSWORD})
    assert result.config.dataset.log == DirectoryLog()
    assert line(result, "dataset.sasl_mechanism").why.startswith("no broker is named")
    assert PASSWORD not in repr(result)


# What is no such file


def test_a_root_that_names_a_topic_is_read_as_the_dataset_and_the_rest_keeps_its_defaults():
    result = import_published(file_with()["dataset"], "config.json")
    whole, config = imported().config, result.config
    assert (config.dataset.topic_name, config.dataset.log) == ("engagements", whole.dataset.log)
    assert [table.num_embeddings for table in config.dataset.tables] == [5000, 4000, 3000, 2000]
    assert {table.embedding_dim for table in config.dataset.tables} == {config.model.width}
    assert config == TrainerConfig(dataset=config.dataset)
    assert [one.source for one in result.lines] == [spelled(steps) for steps, _ in values_of(file_with()["dataset"])]


@pytest.mark.parametrize("prefix", ["", "xrex.train.trainer_recsys.", "somewhere.else."])
def test_a_class_is_known_by_its_last_name_and_never_imported(prefix):
    changes = {"__class": f"{prefix}RecsysTrainer", "dataset.__class": "antigravity.Dataset"}
    assert imported(changes).config == imported().config
    assert "antigravity" not in sys.modules


def test_a_trainer_without_a_dataset_says_what_is_missing():
    assert refused({"__class": "a.RecsysTrainer", "name": "x"}) == [
        "config.json: dataset: missing; expected an object with topic_name and num_kafka_partitions; "
        "give the whole config.json"
    ]


@pytest.mark.parametrize("mapping", [{}, {"name": "x"}, {"__class": "a.Other"}, {"__class": 3, "model": {}}])
def test_a_file_of_another_program_is_refused(mapping):
    (said,) = refused(mapping)
    assert "no config.json of the published trainer" in said
    assert said.endswith("give the config.json of one of its checkpoints")


def test_a_dataset_that_is_no_object_is_refused():
    (said,) = refused(file_with({"dataset": ["engagements"]}))
    assert said.startswith("config.json: dataset = a list: expected an object with topic_name")
    assert said.endswith("; give a config.json of the published trainer")


def test_a_config_of_ours_is_not_imported():
    (said,) = refused(imported().config.to_dict())
    assert said == "config.json: __class: this is a config of Phoenix already (TrainerConfig); give it to --config"


# What cannot be expressed


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("dataset.topic_name", REMOVED, "dataset.topic_name: missing; expected the name of the topic to read"),
        ("dataset.topic_name", None, "dataset.topic_name = null: missing; expected the name of the topic to read"),
        ("dataset.topic_name", 7, "dataset.topic_name = 7: expected a string"),
        ("dataset.topic_name", "two words", "dataset.topic_name = 'two words': expected 1 to 249 of"),
        ("dataset.num_kafka_partitions", None, "dataset.num_kafka_partitions = null: missing; expected the partitions"),
        ("dataset.num_kafka_partitions", True, "dataset.num_kafka_partitions = true: expected an integer"),
        ("dataset.num_kafka_partitions", "8", "dataset.num_kafka_partitions = '8': expected an integer"),
        ("dataset.num_kafka_partitions", 0, "dataset.num_kafka_partitions = 0: must be at least 1"),
        ("dataset.history_seq_len", 0, "dataset.history_seq_len = 0: must be at least 1"),
        (
            "dataset.bootstrap_servers",
            "cluster-a",
            "dataset.bootstrap_servers = 'cluster-a': expected HOST:PORT[,HOST:PORT]",
        ),
        ("dataset.sasl_mechanism", "GSSAPI", "dataset.sasl_mechanism: expected one of PLAIN, SCRAM"),
        ("dataset.output_vocab_size", 65, "dataset.output_vocab_size = 65: at most 63 actions fit here"),
        ("dataset.output_vocab_size", True, "dataset.output_vocab_size = true: expected an integer from 1 on"),
        (f"{HASH_KEYS}.item_id_table_size", 2**31, f"{HASH_KEYS}.item_id_table_size = 2147483648: must be less than"),
        (f"{HASH_KEYS}.item_id_table_size", 1.5, f"{HASH_KEYS}.item_id_table_size = 1.5: expected an integer"),
        (f"{HASH_KEYS}.user_hash_scales", 2, f"{HASH_KEYS}.user_hash_scales = 2: expected a list"),
        ("model_config.emb_table_width", "64", "model_config.emb_table_width = '64': expected an integer"),
        ("rng_seed", -1, "rng_seed = -1: must be at least 0"),
        ("rng_seed", 2**31, "rng_seed = 2147483648: must be less than 2147483648"),
        ("rng_seed", True, "rng_seed = true: expected an integer"),
        ("max_steps", 0, "max_steps = 0: must be at least 1"),
        ("name", 3, "name = 3: expected a string"),
        ("bs_per_device", True, "bs_per_device = true: expected a number above 0"),
        ("bs_per_device", 0.01, "bs_per_device = 0: must be at least 1"),
        ("bs_per_device", 10**400, "bs_per_device = a huge integer: expected a number above 0 and below 2147483648"),
        ("parallel_config.ep", 0, "parallel_config.ep = 0: expected an integer from 1 on"),
        ("optim_config.b1", 1, "optim_config.b1 = 1.0: must be less than 1"),
        ("optim_config.clip_by_global_norm", 0.0, "optim_config.clip_by_global_norm = 0.0: must be greater than 0"),
        ("emb_optim_config.rowwise_adagrad.eps", 0.0, "emb_optim_config.rowwise_adagrad.eps = 0.0: must be greater"),
        (
            "model_config.model_config.num_layers",
            "4",
            "model_config.model_config.num_layers = '4': expected an integer",
        ),
        ("checkpoint_config.checkpoint_keep_last_n", -1, "checkpoint_config.checkpoint_keep_last_n = -1: must be"),
        ("checkpoint_config.checkpoint_keep_every_nth", "9", "checkpoint_config.checkpoint_keep_every_nth = '9': exp"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_the_files_own_paths(path, value, said):
    (only,) = refused(file_with({path: value}))
    assert only.startswith(f"config.json: {said}")
    assert any(
        fix in only for fix in ("; it becomes ", "; write it without quotes", "; write it in quotes", "; write 63")
    )


def test_more_actions_than_bits_are_refused_by_our_dataset_too():
    dataset = imported().config.dataset
    assert published.MAX_ACTIONS == 63
    dataset.replace(actions=tuple(f"a{index}" for index in range(63)))
    with pytest.raises(ConfigError, match="at most 63"):
        DatasetConfig(**{**dict(dataset), "actions": tuple(f"a{index}" for index in range(64))})


def test_a_bearer_token_is_referred_to_by_a_variable_of_its_own():
    security = imported({"dataset.sasl_mechanism": "OAUTHBEARER"}).config.dataset.log.security
    assert (security.token, security.password) == (SecretRef(env="KAFKA_TOKEN"), None)


def test_of_64_logits_the_first_is_no_action():
    result = imported({"dataset.output_vocab_size": 64})
    actions = result.config.dataset.actions
    assert (actions[0], actions[-1], len(actions)) == ("action_01", "action_63", 63)
    said = line(result, "dataset.output_vocab_size")
    assert said.verdict == "translated"
    assert said.why == "label columns action_01 to action_63, of its logits 1 to 63; 0 is no action"


def test_sizes_that_do_not_fit_together_here_are_refused():
    (said,) = refused(file_with({"model_config.model_config.attn_config.num_q_heads": 6}))
    assert said.startswith("config.json: model_config: num_heads = 6: twice this must divide width = 256")


def test_a_file_without_any_number_of_actions_says_where_one_is_missing():
    places = ("dataset", "dataset.hash_table", "model_config.model_config", "model_config.hash_table")
    (said,) = refused(file_with({f"{place}.output_vocab_size": REMOVED for place in places}))
    assert said.startswith("config.json: dataset.output_vocab_size: missing; expected the number of actions")


def test_a_file_without_any_table_says_where_one_is_missing():
    missing = {"dataset.hash_table": REMOVED, "model_config.hash_table": REMOVED}
    (said,) = refused(file_with(missing))
    assert said.startswith(f"config.json: {HASH_KEYS}: missing; expected an object with item_id_table_size")
    nothing = dict.fromkeys((f"{HASH_KEYS}.item_id_table_size", f"{HASH_KEYS}.author_id_table_size"), 0)
    (said,) = refused(file_with(nothing))
    assert said.startswith(f"config.json: {HASH_KEYS}.item_id_table_size = 0: neither this nor author_id_table_size")


def test_all_problems_are_reported_at_once_each_with_the_file_its_path_value_and_fix():
    changes = {
        "dataset.topic_name": REMOVED,
        "dataset.output_vocab_size": 128,
        "rng_seed": -1,
        "parallel_config.dp": "2",
        "model_config.emb_table_width": 0,
    }
    lines = refused(file_with(changes))
    assert [one.split(": ")[1] for one in lines] == [
        "dataset.topic_name",
        "dataset.output_vocab_size = 128",
        "parallel_config.dp = '2'",
        "model_config.emb_table_width = 0",
        "rng_seed = -1",
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=4), below, max_size=2),
    max_leaves=4,
)
ALL_STEPS = [steps for steps, _ in values_of(json.loads(FIXTURE.read_text()))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ALL_STEPS), VALUES), min_size=1, max_size=3))
def test_whatever_stands_in_the_file_it_is_imported_or_refused_with_the_files_name(changes):
    mapping = file_with()
    for steps, value in changes:
        node = mapping
        for step in steps[:-1]:
            node = node[step]
        node[steps[-1]] = value
    before = copy.deepcopy(mapping)
    said = "config.json: nothing"
    try:
        result = import_published(mapping, "config.json")
    except ConfigError as error:
        said = str(error)
    else:
        assert [one.source for one in result.lines] == [spelled(steps) for steps, _ in values_of(mapping)]
        assert TrainerConfig.from_json(result.config.to_json()) == result.config
    assert all(one.startswith("config.json: ") for one in said.splitlines())
    assert mapping == before


def test_importing_needs_no_jax():
    code = (
        "import sys, xrex.train.published; sys.exit(any(m in sys.modules for m in ('jax', 'flax', 'optax', 'orbax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
