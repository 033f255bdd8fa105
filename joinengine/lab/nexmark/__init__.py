"""Nexmark: persons, auctions and bids of an auction house as streams, by published rules."""
