"""The fault simulator: the engine's own driver, tasks and storage protocol, in which all fails.

`trial` runs one seed; `python -m tests.simulator` runs thousands, or one again.
"""
