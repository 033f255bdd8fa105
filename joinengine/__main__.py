"""`python -m joinengine` is the command line."""

from joinengine.lab.cli import main

main()
