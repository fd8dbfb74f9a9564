"""A store of units behind HTTP, as OpenAI's chat completions: ``contentrope serve``.

refusals, limits, schemas, replies   what is asked, answered and refused
text, sampling, requests             one answer: its text, its draws, its events
documents, prefixes, batch, engine   the thread that owns the model
gate, streaming, chat, app, server   HTTP
"""
