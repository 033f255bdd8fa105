"""`python -m joinengine` is the command line."""

from joinengine.cli import main

main()
