"""Texts to train on, and the vocabularies that turn them into ids."""

from contentrope.corpora.characters import UNKNOWN, CharVocabulary
from contentrope.corpora.corpus import Corpus, Text, load_corpus, read_text
from contentrope.corpora.shakespeare import shakespeare_text
from contentrope.corpora.stdlib import standard_library_text
from contentrope.corpora.text_files import fingerprint, text_of

__all__ = [
    "UNKNOWN",
    "CharVocabulary",
    "Corpus",
    "Text",
    "fingerprint",
    "load_corpus",
    "read_text",
    "shakespeare_text",
    "standard_library_text",
    "text_of",
]
