"""``contentrope reproduce``: the experiments, each by the name of a preset."""

from contentrope.cli.reproduce.facts import Facts
from contentrope.cli.reproduce.retrofit import Retrofit
from contentrope.cli.reproduce.shakespeare import Shakespeare
from contentrope.cli.reproduce.timing import Timing

__all__ = ["Facts", "Retrofit", "Shakespeare", "Timing"]
