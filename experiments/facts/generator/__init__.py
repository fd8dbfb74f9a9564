"""Serialized facts: who stands in which relation to whom, and texts that ask for it."""
