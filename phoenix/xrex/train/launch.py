"""What must stand in the environment before the program starts: set it, say so, start anew. Standard library only.

PHOENIX_MACHINE_SETTINGS=off leaves the environment as it is.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

SWITCH = "PHOENIX_MACHINE_SETTINGS"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ONLY_LOOKS = ("--help", "--dry-run", "--print-config")
"""Options with which nothing is trained."""


def with_machine_settings() -> None:
    """Start this very command anew, in this process, where a setting is missing; else return.

    To be called before JAX is imported. The process keeps its number, its streams and its signals.
    """
    if os.environ.get(SWITCH) == "off" or any(option in sys.argv for option in ONLY_LOOKS):
        return
    missing = machine_settings(os.environ)
    if not missing:
        return
    for name, value in missing.items():
        print(f"{name}={value} is set for this run ({SWITCH}=off: nothing is)", flush=True)
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **missing})


def machine_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that training is faster with on this machine and that nobody has set."""
    # Memory of tables on huge pages: scattered rows cost less to reach, and temporaries are not faulted in anew at each step.
    if "GLIBC_TUNABLES" not in environment and _has_glibc(2, 35) and _huge_pages_on_request():
        return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return {}


def _has_glibc(*least: int) -> bool:
    name, version = platform.libc_ver()
    numbers = version.split(".")[:2]
    return name == "glibc" and all(n.isdecimal() for n in numbers) and tuple(map(int, numbers)) >= least


def _huge_pages_on_request() -> bool:
    """glibc asks for them by madvise, which the setting "never" ignores."""
    try:
        return "[never]" not in HUGE_PAGES.read_text()
    except OSError:
        return False
