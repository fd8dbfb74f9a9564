"""Documents as memory units, read by a model trained to: exact match and F1 against reading everything as one text."""
