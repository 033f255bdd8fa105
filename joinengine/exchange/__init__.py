"""Carries tuples from sources to instances: admits, routes and transports them. No Spark."""
