"""Multiway joins: streams that are joined on one key, each kept once."""
