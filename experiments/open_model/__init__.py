"""An open model, SmolLM2-135M-Instruct: converted in several ways, then read far beyond its limit."""
