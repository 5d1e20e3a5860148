"""`xrex plan`: the memory that a run needs, before it is started."""

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from xai_configlib import apply_overrides
from xrex.cli.config import read_config
from xrex.errors import ConfigError
from xrex.report.progress import text_table

GIB = 2**30


def command(
    path: Annotated[str, typer.Argument(metavar="CONFIG", help="A config file, a step, or a run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b.c=value]...", help="Overrides, by exact path.")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices; mesh.num_devices, or 1.")] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory of each device; this machine's, over its devices.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print the bytes that a run needs on each device, and the largest table that fits. Nothing of it is allocated.

    What a step needs while it runs is the plan of XLA's CPU compiler; another backend's differs, the rest does not.

    xrex plan configs/quickstart.yaml --devices 8 --memory 80
    """
    config = apply_overrides(read_config(path, keep_unknown=True), tuple(overrides or ()))
    count = devices or config.mesh.num_devices or 1
    config = apply_overrides(config, (f"mesh.num_devices={count}",))
    # Virtual devices: an accelerator may belong to a run that trains.
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_num_cpu_devices", count)
    from xrex.train.memory import host_memory_bytes, plan_memory

    if memory is not None and memory <= 0:
        raise ConfigError(f"--memory = {memory}: give the GiB of one device, more than 0")
    planned = plan_memory(config)
    available = int(memory * GIB) if memory else host_memory_bytes() // count
    largest = planned.largest.largest((available - planned.total) * count) if planned.largest else None
    if as_json:
        found = {**asdict(planned), "total": planned.total, "available": available, "largest_rows": largest}
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [[use, _size(size)] for use, size in planned.bytes_by_use.items()]
    typer.echo(text_table(["on each device", "bytes"], [*rows, ["together", _size(planned.total)]]))
    typer.echo(f"{count} devices of {_size(available)}: {_verdict(planned.total, available)}")
    if planned.largest is not None:
        typer.echo(_largest(planned.largest.table, planned.largest.rows_now, largest or 0))


def _size(size: int) -> str:
    return f"{size:,} ({size / 2**20:,.1f} MiB)"


def _verdict(total: int, available: int) -> str:
    return (
        f"fits, {total / available:.1%} of it" if total <= available else f"does not fit, {total / available:.2f} times"
    )


def _largest(table: str, rows_now: int, rows: int) -> str:
    if rows <= 0:
        return f"table {table!r}: nothing fits beside the rest; use more devices, or make other tables smaller"
    return f"table {table!r} has {rows_now:,} rows; with all others as they are, up to {rows:,} fit"
