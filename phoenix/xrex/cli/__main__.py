"""`python -m xrex.cli` is the same as `xrex`."""

from xrex.cli.main import main

main()
