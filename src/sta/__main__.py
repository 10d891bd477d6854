"""`python -m sta` is the `sta` command."""

from sta.cli import main

main()
