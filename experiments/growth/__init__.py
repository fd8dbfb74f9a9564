"""Context growth: trained on short windows, read at longer and longer ones."""
