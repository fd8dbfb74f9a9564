"""A store of units behind HTTP, as OpenAI's chat completions: ``contentrope serve``.

refusals, limits, schemas                     what is asked, answered and refused
prompts, text, sampling, requests             one answer: its prompt, its text, its draws, its events
documents, prefixes, batch, engine, service   the thread that owns the model, and what is around it
gate, streaming, chat, metrics, app, server   HTTP
deployment, replicas                          several of them, on Ray
"""
