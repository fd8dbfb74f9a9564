"""A character model on disk: its weights and settings, its vocabulary, and the text it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from contentrope.checkpoint import WEIGHTS, load, save
from contentrope.corpora import CharVocabulary
from contentrope.errors import CheckpointError, InputError
from contentrope.model import Transformer
from contentrope.results import read_json, write_json

VOCABULARY, TRAINING_TEXT = "vocabulary.json", "corpus.json"


def save_text_model(
    folder: str | Path, model: Transformer, vocabulary: CharVocabulary, training_text: Mapping[str, Any] | None = None
) -> None:
    """Write the model, its vocabulary and the description of its corpus; :func:`contentrope.load` reads it too."""
    folder = Path(folder)
    # The weights last: a folder that has them is complete.
    write_json(folder / VOCABULARY, vocabulary.to_dict())
    if training_text is not None:
        write_json(folder / TRAINING_TEXT, training_text)
    save(model, folder)


def load_text_model(
    folder: str | Path, *, device: str | torch.device = "cpu", backend: str = "auto"
) -> tuple[Transformer, CharVocabulary]:
    """The model and the vocabulary in ``folder``, or in ``folder/model``, as ``contentrope train`` leaves them."""
    place = _model_folder(folder)
    model = load(place, device=device, backend=backend)
    try:
        vocabulary = CharVocabulary.from_dict(read_json(place / VOCABULARY))
    except FileNotFoundError:
        raise CheckpointError(f"no {VOCABULARY} in {place}: the model's characters are not known") from None
    except InputError as error:
        raise CheckpointError(f"{place / VOCABULARY} is damaged: {error}") from error
    if len(vocabulary) != model.config.vocab_size:
        raise CheckpointError(
            f"{place / VOCABULARY} has {len(vocabulary)} characters, the model {model.config.vocab_size}: "
            "they do not belong together"
        )
    return model, vocabulary


def training_text_of(folder: str | Path) -> dict[str, Any] | None:
    """The description of the corpus a saved model was trained on, if it was saved with it."""
    path = _model_folder(folder) / TRAINING_TEXT
    if not path.exists():
        return None
    found = read_json(path)
    numbers = [found.get(key) for key in ("characters", "training")] if isinstance(found, dict) else [None]
    counts = all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in numbers)
    if not counts or not isinstance(found.get("name"), str):
        raise CheckpointError(f"{path} is damaged: it does not describe a text; restore it from a copy, or delete it")
    return found


def _model_folder(folder: str | Path) -> Path:
    inner = Path(folder, "model")
    return inner if (inner / WEIGHTS).exists() else Path(folder)
