"""`python -m stoker.cli` is `stoker`."""

from stoker.cli import main

main()
