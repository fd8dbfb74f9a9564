"""Retrofit: a finished model, converted in several ways, read at longer and longer windows."""
