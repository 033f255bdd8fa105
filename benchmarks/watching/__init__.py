"""What the live page costs a batch."""
