"""The papers' figures, and the harness that makes them."""
