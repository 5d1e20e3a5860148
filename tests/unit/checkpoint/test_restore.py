import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_run import assert_equal, state_at, target_like

from xrex.checkpoint.restore import SavedArray, Selection, compare, read_files, restore_state, select
from xrex.errors import CheckpointError


@pytest.fixture
def step(opened, folder):
    checkpoints = opened()
    checkpoints.save_step(5)
    checkpoints.wait()
    return folder / "5"


def _like(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def test_a_comparison_tells_equal_missing_extra_and_reshaped_apart(step):
    target = target_like(state_at(0))
    target["params"]["new"] = _like((2,), jnp.float32)
    target["tables"]["d4"] = _like((2048, 8), jnp.float32)
    del target["step"]
    found = compare(step, target)
    assert found.equal == ("params/blocks/0/kernel",)
    assert found.missing == ("params/new",)
    assert found.extra == ("step",)
    assert found.reshaped == {"tables/d4": (SavedArray((2048, 4), "float32"), SavedArray((2048, 8), "float32"))}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t["params"].update(new=_like((2,), jnp.float32)), "params/new is not in the checkpoint"),
        (
            lambda t: t["tables"].update(d4=_like((1024, 4), jnp.float32)),
            "tables/d4 is float32[2048, 4] in the checkpoint, float32[1024, 4] here",
        ),
        (lambda t: t.update(step=_like((), jnp.float32)), "step is int32[] in the checkpoint, float32[] here"),
        (lambda t: t.pop("step"), "step is in the checkpoint, but not in this model"),
    ],
)
def test_nothing_is_guessed_about_an_array_that_differs(step, change, says):
    target = target_like(state_at(0))
    change(target)
    with pytest.raises(CheckpointError) as error:
        restore_state(step, target)
    assert str(error.value) == f"{step}: {says}; a child may leave it out: --fresh PATTERN"


def test_every_difference_is_told_at_once(step):
    with pytest.raises(CheckpointError) as error:
        restore_state(step, {"step": _like((3,), jnp.int32)})
    assert len(str(error.value).splitlines()) == 3


def test_arrays_of_a_pattern_are_left_in_the_step_and_begin_anew_whether_they_fit_or_not(step):
    target = {
        "tables": target_like(state_at(0))["tables"],
        "step": _like((7,), jnp.int32),
        "new": _like((2,), jnp.int32),
    }
    made = {"step": jnp.arange(7), "new": jnp.arange(2)}
    fresh = ("params/*", "step", "n?w")
    chosen = select(step, target, fresh)
    assert chosen == Selection(("tables/d4",), ("new", "step"), ("params/blocks/0/kernel",))
    restored = restore_state(step, target, chosen, make=lambda names: {name: made[name] for name in names})
    assert_equal(restored, {"tables": state_at(5)["tables"], **made})


def test_a_pattern_that_means_no_array_is_an_error_that_names_some(step):
    with pytest.raises(
        CheckpointError, match=r"--fresh parms/\* is the name of no array, such as params/blocks/0/kernel, step"
    ):
        select(step, target_like(state_at(0)), ("parms/*",))


def test_the_classes_that_hold_the_arrays_may_change(step):
    import collections

    like = target_like(state_at(0))
    state_class = collections.namedtuple("State", ["tables", "step", "params"])
    params = {"blocks": ({"kernel": like["params"]["blocks"][0]["kernel"]},)}
    restored = restore_state(step, state_class(like["tables"], like["step"], params))
    assert isinstance(restored, state_class)
    np.testing.assert_array_equal(restored.tables["d4"], state_at(5)["tables"]["d4"])


@pytest.mark.parametrize("name", ["config.json", "run.json", "positions.json", "progress.json"])
def test_a_file_that_is_gone_is_an_error_naming_it(step, name):
    (step / name).unlink()
    with pytest.raises(CheckpointError, match=f"{step}/{name}: cannot be read: No such file"):
        read_files(step)


@pytest.mark.parametrize("name", ["positions.json", "progress.json"])
def test_a_file_that_is_broken_is_an_error_naming_it(step, name):
    (step / name).write_text("{")
    with pytest.raises(CheckpointError, match=f"{step}/{name}: is not what was saved"):
        read_files(step)


@pytest.mark.parametrize("text", ["{", "{}", '{"arrays": []}', '{"arrays": {"w": {"shape": [1]}}}'])
def test_a_list_of_arrays_that_is_broken_is_an_error_naming_it(step, text):
    (step / "checksums.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"{step}/checksums.json: not valid"):
        restore_state(step, target_like(state_at(0)))


def test_data_that_is_gone_is_an_error_naming_the_step(step):
    for path in (step / "state").rglob("d/*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=f"{step}: the arrays cannot be read: "):
        restore_state(step, target_like(state_at(0)))
