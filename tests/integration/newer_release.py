"""`python -m newer_release ARGUMENTS`: `xrex ARGUMENTS` of a later release, which counts `trainer.log_every_steps` in half
steps. Its configs are of version 2; those of version 1 are migrated."""

import dataclasses

from xai_configlib import migration
from xai_configlib.registry import class_info, register
from xrex.train.config import TrainerConfig
from xrex.utils import metadata

register(TrainerConfig, dataclasses.replace(class_info(TrainerConfig), version=2))
metadata.code_version = lambda: "0.2.0+newer"


@migration(TrainerConfig, from_version=1)
def half_steps(file):
    file["trainer"]["log_every_steps"] *= 2
    return file


if __name__ == "__main__":
    from xrex.cli.main import main

    main()
