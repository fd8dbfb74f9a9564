"""Texts to train on, and the vocabularies that turn them into ids."""

from contentrope.corpora.characters import CharVocabulary
from contentrope.corpora.stdlib import fingerprint, standard_library_text

__all__ = ["CharVocabulary", "fingerprint", "standard_library_text"]
