"""The laboratory: queries, generated streams, simulation, comparison, and the command line.

Nobody needs it to run a join of his own, and no room before it imports it, but for the one module
that hands it its options (joinengine.api.trials).
"""
