"""The loop tree as XLA programs."""
