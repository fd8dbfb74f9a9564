"""Addresses of all units in two kernels (Triton), for whole sequences on a GPU; ``contentrope.address`` defines them.

The first turns the embeddings, sums them by unit and normalises the means; the second projects them to angles.
"""
