"""A store of units behind HTTP, as OpenAI's chat completions: ``contentrope serve``.

refusals, limits, schemas                     what is asked, answered and refused
prompts, text, sampling, looking, requests    one answer: its prompt, its text, its draws, what it read, its events
documents, prefixes, batch, engine, service   the thread that owns the model, and what is around it
order                                         that the order of documents does not matter, shown
gate, streaming, chat, metrics, app, server   HTTP
page, static/                                 the page that is shown
deployment, replicas                          several of them, on Ray
"""
