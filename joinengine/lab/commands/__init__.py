"""The commands of `joinengine`: the options of each, what it runs, and what it prints."""
