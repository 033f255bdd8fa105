"""Emulation in a run: instances that work longer or fail, and a slow store."""
