"""Both layouts of MovieLens give the same kind of events; the real ML-100K is read where it is installed."""

import hashlib
import importlib.util
from pathlib import Path

import pytest

from xai_configlib import load_text
from xrex.data import movielens
from xrex.data.events import build_rows
from xrex.data.featurize import Featurizer
from xrex.errors import ConfigError
from xrex.train.config import TrainerConfig

ML_100K_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"


def find_installed_ml100k() -> Path | None:
    """The folder of ml-100k.inter inside the installed recbole, which is not imported."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dataset_example" / "ml-100k"
    ratings = folder / "ml-100k.inter"
    if ratings.is_file() and hashlib.sha256(ratings.read_bytes()).hexdigest() == ML_100K_SHA256:
        return folder
    return None


def grouplens_flags(*genres: str) -> str:
    return "|".join(str(int(genre in genres)) for genre in movielens._GENRES)


@pytest.fixture
def grouplens(tmp_path):
    """Two users, two films, three ratings, one byte that is not UTF-8."""
    folder = tmp_path / "grouplens"
    folder.mkdir()
    (folder / "u.data").write_text("1\t11\t5\t2000\n2\t12\t2\t1000\n1\t12\t4\t3000\n")
    (folder / "u.user").write_text("1|30|M|writer|00000\n2|25|F|artist|00000\n")
    lines = f"11|A|01-Jan-1995|||{grouplens_flags('Comedy', 'War')}\n12|B é||||{grouplens_flags()}\n"
    (folder / "u.item").write_bytes(lines.encode("latin1"))
    return folder


@pytest.fixture
def typed(tmp_path):
    """The same in typed tables."""
    folder = tmp_path / "typed"
    folder.mkdir()
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "x.inter").write_text(header + "1\t11\t5\t2000\n2\t12\t2\t1000\n1\t12\t4\t3000\n")
    header = "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    (folder / "x.user").write_text(header + "1\t30\tM\twriter\t0\n2\t25\tF\tartist\t0\n")
    header = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    (folder / "x.item").write_text(header + "11\tA\t1995\tComedy War\n12\tB\tsoon\t\n")
    return folder


def test_both_layouts_give_the_same_events(grouplens, typed):
    expected = {
        "user": [1, 2, 1],
        "age": [30, 25, 30],
        "gender": [1, 0, 1],  # F, M
        "occupation": [1, 0, 1],  # artist, writer
        "item": [11, 12, 12],
        "year": [1995, 0, 0],
        "genres": [[0, 1], [], []],  # Comedy, War
        "event_time_ms": [2_000_000, 1_000_000, 3_000_000],
        "like": [1, 0, 1],
        "love": [1, 0, 0],
        "dislike": [0, 1, 0],
    }
    assert movielens.events(grouplens).to_pydict() == expected
    assert movielens.events(typed).to_pydict() == expected
    assert movielens.events(typed / "x.inter").to_pydict() == expected


def test_a_row_carries_profile_and_genres_of_the_films_rated_before(grouplens):
    last = build_rows(movielens.events(grouplens), movielens.COLUMNS, 20).to_pylist()[-1]
    assert (last["user"], last["age"], last["item"], last["genres"], last["like"]) == (1, 30, [12], [[]], [1])
    assert (last["history_item"], last["history_genres"], last["history_actions"]) == ([11], [[0, 1]], [0b011])


def test_the_config_reads_the_rows_that_are_written(grouplens):
    text = (Path(__file__).parents[3] / "configs" / "movielens.yaml").read_bytes()
    dataset = TrainerConfig.from_json(load_text(text, "movielens.yaml")).dataset
    rows = build_rows(movielens.events(grouplens), movielens.COLUMNS, dataset.max_history).to_batches()[0]
    featurizer = Featurizer(dataset)
    batch = featurizer.featurize(featurizer.check(rows), 3).batch
    assert batch.candidates["item"].tolist() == [[[12]], [[11]], [[12]]]
    assert batch.history["past_genres"][2, 0].tolist() == [0, 1, -1, -1, -1, -1]
    assert batch.labels[:, 0].tolist() == [[0, 0, 1], [1, 1, 0], [1, 0, 0]]


def test_what_is_not_movielens_is_refused_with_its_reason(grouplens, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: 0 files named u\.data"):
        movielens.events(tmp_path / "nowhere")
    (grouplens / "u.data").write_text("1\t99\t5\t2000\n")
    with pytest.raises(ConfigError, match="item 99 is rated but is not in the table of items"):
        movielens.events(grouplens)
    (grouplens / "u.user").unlink()
    with pytest.raises(ConfigError, match=r"u\.user.*name the folder of u\.data or NAME\.inter"):
        movielens.events(grouplens)


def test_ml_100k_is_read_whole():
    folder = find_installed_ml100k()
    if folder is None:
        pytest.skip("needs ML-100K: pip install --no-deps recbole==1.2.1")
    events = movielens.events(folder)
    assert len(events) == 100_000
    assert [int(events[name].to_numpy().sum()) for name in ("like", "love", "dislike")] == [55_375, 21_201, 17_480]
    profile = {"user": 196, "age": 49, "gender": 1, "occupation": 20, "item": 242, "year": 1996, "genres": [4]}
    labels = {"event_time_ms": 881_250_949_000, "like": 0, "love": 0, "dislike": 0}
    assert events.slice(0, 1).to_pylist() == [profile | labels]
