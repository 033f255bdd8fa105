"""The commands of `joinengine`: what each asks, runs and says."""
