"""The paper's experiments and ours: run from the repository, not installed with the library."""
