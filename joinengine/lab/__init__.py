"""The laboratory: queries, generated streams, simulation, comparison, and the command line.

You do not need it for joins of your own. No other package imports it, except for the one module
that passes it its options (joinengine.api.trials).
"""
