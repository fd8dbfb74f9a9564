"""Timing: how much longer a training step takes with addresses than with RoPE."""
