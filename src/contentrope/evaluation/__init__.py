"""What a trained model makes of a text: perplexity by context length, and how much of the distant text it uses."""

from contentrope.evaluation.distant import perplexity_by_position, perplexity_with_changed_past, use_of_distant_text
from contentrope.evaluation.perplexity import perplexity, shown

__all__ = ["perplexity", "perplexity_by_position", "perplexity_with_changed_past", "shown", "use_of_distant_text"]
