"""One run, from its plan to its summary: opens the run folder and the stream, builds the loop, runs it."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from xrex.checkpoint import layout, positions
from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import StepFiles, read_files, restore_state
from xrex.data.dataset import check_positions, start_positions
from xrex.errors import PhoenixError
from xrex.report.sinks import JsonLines, drop_after
from xrex.schema.positions import TopicPositions
from xrex.train.config import TrainerConfig
from xrex.train.loop import Loop
from xrex.train.progress import Progress, merge_json
from xrex.train.reporting import Reporter, closing_lines, write_failure
from xrex.train.setup import Program, build_program, open_stream
from xrex.train.signals import StopRequest, stop_on_signals
from xrex.train.start import Plan
from xrex.utils.metadata import Environment, MetadataRecorder, Run, Start, config_sha256, utc_now
from xrex.utils.utils import from_process_zero, process_count, process_index


def run(config: TrainerConfig, plan: Plan | None) -> int:
    """Train and return the exit code. Every process comes here with the same config; only process 0 has the plan."""
    program = build_program(config)
    with ExitStack() as held:
        begun = from_process_zero(lambda: begin(plan, held) if plan else {})
        run_dir = Path(begun["run_dir"])
        try:
            loop = build_loop(config, program, begun, held)
            with stop_on_signals() as stop:
                status = loop.run(stop)
            summary = loop.reporter.finish(loop, status)
        except PhoenixError as error:
            if process_index() == 0:
                write_failure(run_dir, config, str(error))
            raise
    if process_index() == 0:
        print(closing_lines(run_dir, summary), flush=True)
    return stop_code(stop, status)


def stop_code(stop: StopRequest, status: str) -> int:
    """0, or 128 + the signal; SIGTERM's for a process that stopped because another was told to."""
    return 0 if status == "completed" else 128 + (stop.signum or 15)


def begin(plan: Plan, held: ExitStack) -> dict[str, Any]:
    """Process 0: take the run folder, find out where the stream stands, fix it in run.json; what the others need of it.

    Raises RunError where the folder or the log cannot be used, LogError where positions do not fit the log.
    """
    run_dir, config = plan.run_dir, plan.config
    held.enter_context(layout.lock_run_folder(run_dir))
    own_step = _own_step(plan)
    saved = None if own_step is None else read_files(own_step)
    topic = first_positions(plan, saved)
    run = run_record(plan, topic)
    recorder = MetadataRecorder()
    recorder.record_run(run, config)
    recorder.write(run_dir)
    if plan.kind == "restart":
        for path in [run_dir / layout.METRICS, *run_dir.glob("journal-*.jsonl")]:
            drop_after(path, 0 if own_step is None else int(own_step.name))
    for partition, at in sorted(topic.partitions.items()):
        end = "" if at.end_offset is None else f", to offset {at.end_offset}"
        print(f"{topic.topic} partition {partition}: from offset {at.offset} row {at.row}{end}")
    return {
        "run_dir": str(run_dir),
        "restore_from": None if plan.restore_from is None else str(plan.restore_from),
        "own_step": None if own_step is None else int(own_step.name),
        "positions": positions.to_json({topic.topic: topic}),
        "progress": None if saved is None else json.dumps(saved.progress),
        "run": run.to_json(),
    }


def first_positions(plan: Plan, saved: StepFiles | None) -> TopicPositions:
    """Where this start begins to read."""
    dataset = plan.config.dataset
    if plan.kind == "restart" and plan.earlier is not None:
        held = saved.positions if saved else positions.from_json(json.dumps(plan.earlier.starts[0].positions))
        return check_positions(dataset, held[dataset.topic_name])
    if plan.kind == "child" and plan.restore_from is not None and plan.start_at is None:
        held = read_files(plan.restore_from).positions[dataset.topic_name]
        return check_positions(dataset, held, new_ends=True)
    return start_positions(dataset, start_at=plan.start_at)


def run_record(plan: Plan, topic: TopicPositions) -> Run:
    """run.json of this start."""
    devices = jax.devices()
    environment = Environment.here(devices=f"{len(devices)} x {devices[0].device_kind}", hosts=process_count())
    rows = plan.reconciliation.rows if plan.reconciliation else ()
    start = Start(
        time=utc_now(),
        config_sha256=config_sha256(plan.config),
        positions=json.loads(positions.to_json({topic.topic: topic})),
        end_offsets={str(p): at.end_offset for p, at in topic.partitions.items() if at.end_offset is not None} or None,
        per_start={row.path: row.experiment for row in rows if row.policy == "per_start"},
    )
    if plan.kind == "restart" and plan.earlier is not None:
        return plan.earlier.restarted(environment=environment, start=start, provenance=plan.provenance)
    origin = {"name": plan.config.trainer.name, "environment": environment, "start": start}
    origin |= {"start_at": plan.start_at, "provenance": plan.provenance}
    if plan.kind == "child" and plan.earlier is not None:
        differences = tuple(asdict(row) for row in rows)
        return Run.child_of(
            plan.earlier, str(plan.checkpoint), str(plan.restore_from), differences=differences, **origin
        )
    return Run.first(**origin)


def build_loop(config: TrainerConfig, program: Program, begun: dict[str, Any], held: ExitStack) -> Loop:
    """The loop, with its state restored or fresh. All processes build theirs together."""
    run_dir, trainer = Path(begun["run_dir"]), config.trainer
    checkpoints = Checkpoints(run_dir / layout.CHECKPOINTS, config.checkpoint, merge_progress=merge_json)
    from_process_zero(checkpoints.prepare)
    restore_from = begun["restore_from"]
    state = restore_state(Path(restore_from), program.state_target) if restore_from else program.fresh_state()
    recorder = MetadataRecorder()
    recorder.record_run(Run.from_json(begun["run"]), config)
    topic = positions.from_json(begun["positions"])[config.dataset.topic_name]
    progress = restored_progress(config, begun["progress"])
    stream = open_stream(config, topic)
    held.callback(stream.close)
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
        reporter=Reporter(run_dir, log_every_steps=trainer.log_every_steps, total_steps=trainer.max_steps),
        journal=JsonLines(run_dir / layout.journal(process_index())) if trainer.journal else None,
        saved_step=begun["own_step"],
    )


def restored_progress(config: TrainerConfig, saved: str | None) -> Progress:
    """progress.json of the restored step, or a fresh start."""
    if saved is not None:
        return Progress.from_json(json.loads(saved))
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
