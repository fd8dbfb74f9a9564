"""Texts to train on, and the vocabularies that turn them into ids."""

from contentrope.corpora.characters import UNKNOWN, CharVocabulary
from contentrope.corpora.corpus import Corpus, load_corpus
from contentrope.corpora.shakespeare import shakespeare_text
from contentrope.corpora.stdlib import fingerprint, standard_library_text
from contentrope.corpora.text_files import text_of

__all__ = [
    "UNKNOWN",
    "CharVocabulary",
    "Corpus",
    "fingerprint",
    "load_corpus",
    "shakespeare_text",
    "standard_library_text",
    "text_of",
]
