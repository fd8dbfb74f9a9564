"""The normalised descriptors of all units in one kernel (Triton): turn, sum by unit, mean, LayerNorm.

``contentrope.address`` defines them; this is the fast path for whole sequences on a GPU. The projection to angles, a
matrix product, is the second and last launch.
"""
