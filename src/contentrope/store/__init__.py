"""Units that are read once: their keys and values are stored, and joined to a KV cache in any company.

from contentrope.store import UnitStore

store = UnitStore("my-store", model, tokenizer)
keys = store.add(["text of a document", "another"])
model.generate(**store.ask("a question", keys), max_new_tokens=32)
"""

from contentrope.hf.plain import require_transformers

require_transformers()

from contentrope.store.cache import SetCache  # noqa: E402
from contentrope.store.document_files import NamedDocument  # noqa: E402
from contentrope.store.named import NamedDocuments  # noqa: E402
from contentrope.store.unit_store import Document, UnitStore  # noqa: E402

__all__ = ["Document", "NamedDocument", "NamedDocuments", "SetCache", "UnitStore"]
