"""Compile the native kernel for this machine: python -m xrex.embeddings.native.build

The library lies outside of the source tree, in $PHOENIX_NATIVE_DIR, else in share/phoenix-recsys of the Python environment. Its
name carries a hash of the source, of jaxlib's version and of the CPU, and one of the compiler. After a change of one of the first
three, or on another kind of CPU, a library from before is not found, instead of crashing. Only the standard library is imported:
where everything is done already, that is seen in a tenth of a second.
"""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.cc")
CPUINFO = Path("/proc/cpuinfo")
_OF_THE_CPU = (
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU part",
    "Features",
)
"""Fields of /proc/cpuinfo that tell which instructions there are, on x86 and on ARM."""
_OPTIONS = ("-std=c++17", "-O3", "-DNDEBUG", "-ffp-contract=off", "-shared", "-fPIC")
"""Without fused multiply-adds, and with no -ffast-math, the result is the same on every CPU."""


def folder() -> Path:
    """Where libraries are built and looked for."""
    given = os.environ.get("PHOENIX_NATIVE_DIR")
    return Path(given) if given else Path(sys.prefix) / "share" / "phoenix-recsys"


def built() -> Path | None:
    """The newest library that was built from this source, for this jaxlib and for this CPU; no compiler is asked."""
    found = folder().glob(f"embeddings-{_fits_here()}-*.so")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def build() -> str:
    """Build the library unless it is there. Returns what was done, in one line, and why if nothing could be."""
    compiler = _compiler()
    if compiler is None:
        return (
            "not built, no C++ compiler ($CXX, c++, g++ or clang++): tables are updated by XLA alone, more slowly; "
            "install one (Debian: apt-get install g++)"
        )
    try:
        version = _output(compiler, "--version").partition("\n")[0]
        library = folder() / f"embeddings-{_fits_here()}-{_hash(compiler, version, *_OPTIONS)}.so"
        if library.exists():
            return f"up to date, {library}"
        library.parent.mkdir(parents=True, exist_ok=True)
        tuned = _compile(compiler, library)
    except OSError as error:
        return f"not built, {error.strerror}: {error.filename}; set PHOENIX_NATIVE_DIR to a folder that can be written"
    except subprocess.CalledProcessError as error:
        lines = error.stdout.strip().splitlines() or [f"exit code {error.returncode}"]
        why = next((line for line in lines if "error" in line), lines[0])
        return f"not built, {compiler}: {why}; tables are updated by XLA alone, more slowly"
    return f"built {library} ({version}{'' if tuned else ', not tuned to this CPU'})"


def _compile(compiler: str, library: Path) -> bool:
    """Whether the compiler took -march=native; the library appears whole or not at all."""
    # Imported here, since jax takes a second, and a library that is there needs no headers.
    import jax

    part = library.with_suffix(f".{os.getpid()}.part")
    command = [compiler, *_OPTIONS, "-I", jax.ffi.include_dir(), str(SOURCE), "-o", str(part)]
    try:
        try:
            # Where it is unknown what the CPU can do, the name of the library could not tell it either.
            tuned = bool(_cpu())
            _output(*command, *(["-march=native"] if tuned else []))
        except subprocess.CalledProcessError:
            tuned = False
            _output(*command)
        with part.open("rb") as written:
            # A library that is cut short, after a power cut, would end the process that loads it.
            os.fsync(written.fileno())
        part.replace(library)
    finally:
        part.unlink(missing_ok=True)
    return tuned


def _compiler() -> str | None:
    """$CXX, or the first of the usual names that is on the PATH."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def processor() -> str:
    """16 hex digits that tell this kind of CPU from others, whose instructions differ."""
    return _hash(sys.platform, platform.machine(), *_cpu())


def _fits_here() -> str:
    return _hash(SOURCE.read_text(), importlib.metadata.version("jaxlib"), processor())


def _cpu() -> list[str]:
    """What /proc/cpuinfo says of the first core; nothing where there is no such file."""
    if not CPUINFO.exists():
        return []
    first_core = CPUINFO.read_text().split("\n\n")[0].splitlines()
    fields = {name.strip(): words.split() for name, _, words in (line.partition(":") for line in first_core)}
    return [f"{name}={' '.join(sorted(fields[name]))}" for name in _OF_THE_CPU if name in fields]


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _output(*command: str) -> str:
    """What a command prints. Raises CalledProcessError, which holds it, if it fails."""
    text = subprocess.PIPE
    return subprocess.run(command, check=True, text=True, stdout=text, stderr=subprocess.STDOUT).stdout


def main() -> int:
    """Always 0: the kernel is an optional part."""
    print("native kernel:", build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
