"""Any run config there can be, for hypothesis."""

from pathlib import Path

from hypothesis import strategies as st
from sample_configs import (
    Activation,
    BrokerSource,
    Dataset,
    Feature,
    FolderSource,
    Model,
    Optimizer,
    Precision,
    SampleRun,
    Security,
    Table,
)

from xai_configlib import SecretRef

text = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
numbers = st.floats(allow_nan=False)
references = st.one_of(
    st.builds(SecretRef, env=st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)),
    st.builds(SecretRef, file=st.from_regex(r"[a-z/.]{1,9}", fullmatch=True)),
)
positive = st.integers(1, 2**80)
tables = st.builds(Table, num_rows=positive, dim=positive, hash_salt=st.integers(0, 2**64 - 1))
models = st.builds(
    Model,
    embedding_dim=positive,
    hidden_dims=st.lists(st.integers(), max_size=3).map(tuple),
    dropout=st.floats(0, 1, exclude_max=True),
    activation=st.sampled_from(Activation),
    precision=st.sampled_from(Precision),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    tables=st.dictionaries(text, tables, max_size=2),
    head_loss_weights=st.dictionaries(st.integers(), numbers, max_size=3),
)
securities = st.builds(
    Security,
    protocol=st.sampled_from(["PLAINTEXT", "SASL_SSL"]),
    username=st.none() | text,
    password=st.none() | references,
    keys=st.lists(references, max_size=2).map(tuple),
)
sources = st.one_of(
    st.builds(BrokerSource, servers=st.lists(text, min_size=1, max_size=2).map(tuple), security=securities),
    st.builds(FolderSource, path=st.from_regex(r"[a-zé/. ]{1,9}", fullmatch=True).map(Path)),
)
datasets = st.builds(
    Dataset,
    topic_name=st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True),
    num_kafka_partitions=positive,
    batch_size=positive,
    features=st.lists(st.builds(Feature, column=words, weight=numbers), max_size=2).map(tuple),
    window=st.tuples(st.integers(), numbers),
    start_offsets=st.none() | st.dictionaries(st.integers(), st.integers(0, 2**64 - 1), max_size=3),
    source=sources,
)
optimizers = st.builds(
    Optimizer,
    learning_rate=st.floats(0, exclude_min=True),
    clip_norm=st.none() | st.floats(0, exclude_min=True),
)
runs = st.builds(
    SampleRun,
    run_name=text,
    seed=st.integers(),
    verbose=st.booleans(),
    model=models,
    dataset=datasets,
    optimizer=optimizers,
)
