"""One run, from its plan to its summary: opens the run folder and the stream, builds the loop, runs it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from xrex.checkpoint import layout, positions
from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import StepFiles, read_files
from xrex.data import places
from xrex.data.assignment import reader_of
from xrex.data.batching import BAD_RECORD
from xrex.data.dataset import LOST_OFFSET, Resumed, check_positions, start_positions
from xrex.data.log.open import commit_positions
from xrex.embeddings.native.build import processor
from xrex.errors import CheckpointError, ConfigError, LogError, RunError, StepDamaged
from xrex.report.failures import reason
from xrex.report.prometheus import Prometheus
from xrex.report.sinks import JsonLines, drop_after
from xrex.schema.positions import TopicPositions
from xrex.train.config import TrainerConfig
from xrex.train.loop import Loop
from xrex.train.memory import refuse_too_large
from xrex.train.progress import Progress, merge_json
from xrex.train.reporting import Reporter, closing_lines, write_failure
from xrex.train.restored import check_optimizer, grown_tables, take_over
from xrex.train.setup import Program, build_program, mesh_of, open_stream, table_kernel
from xrex.train.signals import StopRequest, stop_on_signals
from xrex.train.start import Plan, command_line, read_checkpoint_config
from xrex.train.state import TrainState
from xrex.utils.metadata import Environment, MetadataRecorder, Run, Start, config_sha256, utc_now
from xrex.utils.utils import agree, first_cause, from_process_zero, process_count, process_index, raise_together


def run(config: TrainerConfig, plan: Plan | None, plan_again: Callable[[], Plan]) -> int:
    """Train and return the exit code. Every process comes here with the same config; only process 0 has the plan.

    plan_again  makes the plan anew, after a damaged step was moved aside
    """
    mesh = mesh_of(config)
    with stop_on_signals() as stop, ExitStack() as held:
        # Before anything is compiled: a stream that cannot be read is reported in seconds.
        begun = from_process_zero(lambda: begin(plan, held, plan_again) if plan else {})
        with first_cause(), machine_errors_in_words(Path(begun["run_dir"])):
            compile_once(Path(begun["run_dir"]))
            agree("table kernel", table_kernel(config.mesh))
            program = build_program(config, mesh)
            refuse_too_large(program)
            state, begun = restored_state(program, begun, plan_again)
            loop = build_loop(config, program, state, begun, held)
            status = loop.run(stop)
            whole = loop.standing()
            summary = loop.reporter.finish(whole, status=status, step=loop.current_step, config=config)
    if plan is not None:
        print(closing_lines(plan.run_dir, summary), flush=True)
    return stop_code(stop, status)


def compile_once(run_dir: Path) -> None:
    """Keep what is compiled in the run folder, so that a restart starts faster, unless the environment names another place."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(run_dir / layout.COMPILED / processor()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()  # the broadcasts before have found it off


@contextmanager
def machine_errors_in_words(run_dir: Path) -> Iterator[None]:
    """A full disk, a device without memory or a process that has gone is a RunError that says what can be done."""
    go_on = command_line("--run-dir", run_dir)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        first = str(error).strip().split("\n")[0][:500]
        if "RESOURCE_EXHAUSTED" in first:
            what = (
                "a device is out of memory: lower trainer.global_batch_size, make tables smaller, or use more devices"
            )
        else:
            what = f"a device failed, or another process has gone: look at the others' last lines; to go on: {go_on}"
        raise RunError(f"{what} ({first})") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(
            f"{error.filename or run_dir}: {error.strerror or error}; once that is mended, go on: {go_on}"
        ) from error


@contextmanager
def failure_noted(run_dir: Path, config: TrainerConfig) -> Iterator[None]:
    """summary.json tells of whatever ends the block, also of a defect."""
    try:
        yield
    except Exception as error:
        try:
            write_failure(run_dir, config, reason(error))
        except (OSError, CheckpointError) as second:
            print(f"{run_dir / layout.SUMMARY}: cannot be written: {second}", file=sys.stderr)
        raise


def finish_save(checkpoints: Checkpoints) -> None:
    """Also of a run that fails the save in the background is worth its wait; among several processes, who may have gone?"""
    if process_count() == 1:
        with suppress(CheckpointError):  # of a save that failed the error is on its way already
            checkpoints.wait()


def stop_code(stop: StopRequest, status: str) -> int:
    """0, or 128 + the signal; SIGTERM's for a process that stopped because another was told to."""
    return 0 if status == "completed" else 128 + (stop.signum or 15)


def begin(plan: Plan, held: ExitStack, plan_again: Callable[[], Plan]) -> dict[str, Any]:
    """Process 0: take the run folder, find out where the stream stands, fix it in run.json; what the others need of it.

    Raises ConfigError where the folder is in use, RunError where it cannot be used, LogError where the log cannot, or
    where positions do not fit it.
    """
    held.enter_context(layout.lock_run_folder(plan.run_dir))
    if plan.restore_from is not None and _own_step(plan) is None:
        held.enter_context(layout.in_use(plan.restore_from))  # by the time this ends the child has steps of its own
    _refuse_overtaken(plan.run_dir, _own_step(plan))  # before any note: the summary there is the other one's
    held.enter_context(failure_noted(plan.run_dir, plan.config))
    with machine_errors_in_words(plan.run_dir):
        return fix_start_at_a_whole_step(plan, plan_again)


def fix_start_at_a_whole_step(plan: Plan, plan_again: Callable[[], Plan]) -> dict[str, Any]:
    """As fix_start; a step of this run whose files are damaged is moved aside first."""
    while True:
        try:
            return fix_start(plan)
        except StepDamaged as error:
            move_aside(error, _own_step(plan))
            plan = plan_again()


def fix_start(plan: Plan) -> dict[str, Any]:
    """The start of a run whose folder is held: where it stands, from then on in its config.json and run.json."""
    run_dir, config = plan.run_dir, plan.config
    own_step = _own_step(plan)
    saved = None if own_step is None else read_files(own_step)
    grown_from = what_has_grown(plan)
    resumed = first_positions(plan, saved)
    topic = resumed.topic
    run = run_record(plan, topic)
    recorder = MetadataRecorder()
    recorder.record_run(run, config)
    recorder.write(run_dir)
    (run_dir / layout.SUMMARY).unlink(missing_ok=True)  # the last start's; a run that is killed has none
    if plan.kind == "restart":
        for path in [run_dir / layout.METRICS, *layout.files_by_process(run_dir)]:
            drop_after(path, -1 if own_step is None else int(own_step.name))
    for partition, at in sorted(topic.partitions.items()):
        end = "" if at.end_offset is None else f", to offset {at.end_offset}"
        reader = f", read by process {reader_of(partition, process_count())}" if process_count() > 1 else ""
        print(f"{topic.topic} partition {partition}: from offset {at.offset} row {at.row}{end}{reader}", flush=True)
    return {
        "run_dir": str(run_dir.absolute()),
        "restore_from": None if plan.restore_from is None else str(plan.restore_from),
        "own_step": None if own_step is None else int(own_step.name),
        "fresh": list(plan.fresh) if own_step is None else [],
        "grown_from": grown_from,
        "positions": positions.to_json({topic.topic: topic}),
        "progress": None if saved is None else json.dumps(saved.progress),
        "lost": resumed.lost,
        "run": run.to_json(),
    }


def what_has_grown(plan: Plan) -> dict[str, int]:
    """Tables with more rows than in the step of another run that this one begins from, with the rows there.

    Raises CheckpointError where the step's dense optimizer is another.
    """
    if plan.restore_from is None or _own_step(plan) is not None:
        return {}
    _, before = read_checkpoint_config(plan.restore_from / layout.CONFIG, keep_unknown=True, say=lambda line: None)
    check_optimizer(plan.restore_from, plan.config, before, plan.fresh)
    return grown_tables(plan.config, before)


def first_positions(plan: Plan, saved: StepFiles | None) -> Resumed:
    """Where this start begins to read."""
    dataset, on_lost = plan.config.dataset, places.on_lost_offset(plan.on_lost_offset)
    if plan.kind == "restart" and plan.earlier is not None:
        held = saved.positions if saved else positions.from_json(json.dumps(plan.earlier.starts[0].positions))
        rows = plan.reconciliation.rows if plan.reconciliation else ()
        new_ends = any(row.path == "dataset.stop_at_timestamp" for row in rows)
        return check_positions(dataset, held[dataset.topic_name], on_lost=on_lost, new_ends=new_ends)
    place = places.start_at(plan.start_at)
    if place is not None and place.kind == "positions":
        held = positions.from_json(place.file.read_bytes(), str(place.file))
        return check_positions(dataset, held[dataset.topic_name], new_ends=True, on_lost=on_lost)
    if plan.kind == "child" and plan.restore_from is not None and place is None:
        held = read_files(plan.restore_from).positions[dataset.topic_name]
        return check_positions(dataset, held, new_ends=True, on_lost=on_lost)
    return Resumed(start_positions(dataset, place=place))


def run_record(plan: Plan, topic: TopicPositions) -> Run:
    """run.json of this start."""
    devices = jax.devices()
    on = f"{len(devices)} x {devices[0].device_kind}, tables by {table_kernel(plan.config.mesh)}"
    environment = Environment.here(devices=on, hosts=process_count())
    rows = plan.reconciliation.rows if plan.reconciliation else ()
    start = Start(
        time=utc_now(),
        config_sha256=config_sha256(plan.config),
        positions=json.loads(positions.to_json({topic.topic: topic})),
        end_offsets={str(p): at.end_offset for p, at in topic.partitions.items() if at.end_offset is not None} or None,
        per_start={row.path: row.experiment for row in rows if row.policy == "per_start"},
    )
    origin: dict[str, Any] = {"environment": environment, "start": start, "provenance": dict(plan.provenance)}
    if plan.kind == "restart" and plan.earlier is not None:
        run = plan.earlier.restarted(**origin)
        return replace(run, keep_unknown=plan.keep_unknown).blaming(plan.anew, plan.earlier, plan.given)
    origin |= {"name": plan.config.trainer.name, "start_at": plan.start_at, "keep_unknown": plan.keep_unknown}
    origin["fresh"] = plan.fresh
    if plan.kind == "child" and plan.earlier is not None and plan.inherited is not None:
        origin |= {"differences": tuple(asdict(row) for row in rows), "inherited": plan.inherited.to_dict()}
        child = Run.child_of(plan.earlier, str(plan.checkpoint), str(plan.restore_from), **origin)
        return child.blaming(plan.anew, plan.earlier, plan.given)
    return Run.first(**origin).blaming(plan.anew, None, plan.given)


def restored_state(
    program: Program, begun: dict[str, Any], plan_again: Callable[[], Plan]
) -> tuple[TrainState, dict[str, Any]]:
    """The state to begin from, a step's or a fresh one, and where the run then begins.

    A step of this run that is damaged is moved aside, and the one before it is used. Raises StepDamaged, on every process,
    where there is none, or where the step is another run's.
    """
    while begun["restore_from"] is not None:
        state, damage = None, None
        try:
            state = take_over(
                program,
                layout.open_path(begun["restore_from"]),
                fresh=begun["fresh"],
                grown_from=begun["grown_from"],
                say=partial(print, flush=True) if process_index() == 0 else lambda line: None,
            )
        except StepDamaged as error:
            damage = error
        try:
            raise_together(damage)
        except StepDamaged as error:
            begun = from_process_zero(partial(begin_before, error, begun, plan_again))
            continue
        assert state is not None
        return state, begun
    return program.fresh_state(), begun


def begin_before(error: StepDamaged, begun: dict[str, Any], plan_again: Callable[[], Plan]) -> dict[str, Any]:
    """Process 0: begin from the step before the damaged one; raises the error where that cannot be."""
    move_aside(error, None if begun["own_step"] is None else Path(begun["restore_from"]))
    return fix_start_at_a_whole_step(plan_again(), plan_again)


def move_aside(error: StepDamaged, own_step: Path | None) -> None:
    """Move the damaged step of this run aside, with loud lines. Raises the error where none is older, or it is another's."""
    if own_step is None:
        raise error
    if not any(step < int(own_step.name) for step in layout.complete_steps(own_step.parent)):
        raise StepDamaged(f"{error}\n{own_step.parent}: no step is older: restore one from a copy") from error
    aside = layout.move_damaged_aside(own_step)
    layout.say_on_stderr(f"{error}\n{own_step} is damaged: moved aside to {aside.name}, the step before it is used")


def build_loop(
    config: TrainerConfig, program: Program, state: TrainState, begun: dict[str, Any], held: ExitStack
) -> Loop:
    """The loop around its state. All processes build theirs together."""
    run_dir, trainer = Path(begun["run_dir"]), config.trainer
    checkpoints = Checkpoints(
        run_dir / layout.CHECKPOINTS,
        config.checkpoint,
        merge_progress=merge_json,
        on_commit=partial(tell_the_log, config),
    )
    from_process_zero(checkpoints.prepare)
    recorder = MetadataRecorder()
    recorder.record_run(Run.from_json(begun["run"]), config)
    topic = positions.from_json(begun["positions"])[config.dataset.topic_name]
    progress = restored_progress(config, begun["progress"], begun["restore_from"])
    if begun["lost"]:
        progress.skipped[LOST_OFFSET] += begun["lost"]
    held.callback(finish_save, checkpoints)
    stream = open_stream(config, topic, bad_before=progress.skipped[BAD_RECORD])
    held.callback(stream.close)
    prometheus, problem = None, None
    try:
        if trainer.prometheus_address and process_index() == 0:
            prometheus = Prometheus(trainer.prometheus_address)
            held.callback(prometheus.close)
    except RunError as error:
        problem = error
    raise_together(problem)
    reporter = Reporter(
        run_dir,
        log_every_steps=trainer.log_every_steps,
        total_steps=trainer.max_steps,
        examples_before=progress.examples,
        prometheus=prometheus,
    )
    held.callback(reporter.close)
    return Loop(
        config=config,
        mesh=program.mesh,
        step=program.step,
        state=state,
        scratch=program.scratch(),
        stream=stream,
        positions=topic,
        examples=progress.examples,
        progress=progress if process_index() == 0 else progress.cleared(),
        checkpoints=checkpoints,
        recorder=recorder,
        reporter=reporter,
        journal=JsonLines(run_dir / layout.journal(process_index())) if trainer.journal else None,
        dead_letters=JsonLines(run_dir / layout.dead_letters(process_index())),
        saved_step=begun["own_step"],
    )


def tell_the_log(config: TrainerConfig, step_dir: Path) -> None:
    """After a complete checkpoint, for tools that show a group's lag: that they cannot be told ends no run."""
    file = step_dir / layout.POSITIONS
    try:
        commit_positions(
            config.dataset.log, positions.from_json(file.read_bytes(), str(file))[config.dataset.topic_name]
        )
    except (LogError, CheckpointError, OSError, ConfigError) as error:  # ConfigError: a password that is gone
        layout.say_on_stderr(f"warning: step {step_dir.name} is saved, but {error}")


def restored_progress(config: TrainerConfig, saved: str | None, step: str | None) -> Progress:
    """progress.json of the restored step, or a fresh start."""
    if saved is not None:
        return Progress.from_json(json.loads(saved), f"{step}/{layout.PROGRESS}")
    return Progress.start(config.dataset.actions, config.dataset.references, config.evaluation.window_examples)


def _own_step(plan: Plan) -> Path | None:
    """The step of this very run that is restored; None where it begins from nothing or from its parent's."""
    step = plan.restore_from
    ours = (
        step is not None
        and plan.kind == "restart"
        and step.parent.resolve() == (plan.run_dir / layout.CHECKPOINTS).resolve()
    )
    return step if ours else None


def _refuse_overtaken(run_dir: Path, own_step: Path | None) -> None:
    """The plan was made before the lock was held: another trainer may have written steps since."""
    newest = layout.newest_step(run_dir / layout.CHECKPOINTS, lambda line: None)
    if newest is not None and (own_step is None or newest.name != own_step.name):
        raise RunError(f"{run_dir}: another process has trained here in the last seconds; start again")
