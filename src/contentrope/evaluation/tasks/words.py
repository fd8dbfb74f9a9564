"""What examples are named by and asked for: words, numbers and identifiers, drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from uuid import UUID

from contentrope.errors import InputError

MOST_MISSES = 1000
"""Words drawn in a row that were all drawn before: then there are hardly any others."""

ADJECTIVES = """
amber ancient autumn bitter bold brave bright broad bronze calm careful cheerful clever cloudy coastal copper cosy
crimson crooked curious dusty eager early eastern faded famous fertile fierce floral foggy foreign formal fragile
frosty gentle giant glassy golden graceful grateful gravel hidden hollow honest humble icy idle ivory jolly joyful
kindly lazy leafy little lively lonely lucky marble mellow mighty misty modern modest narrow nimble noble northern
odd olive painted pale patient pearly plain playful polite proud purple quick quiet rapid royal rustic rusty sacred
salty scarlet shady sharp shiny silent silver simple sleepy smooth snowy solar solid southern splendid spotted
steady stormy sturdy sunny swift tender thirsty timid tiny velvet vivid wandering western wild windy winter wise
wooden yellow young
""".split()  # noqa: SIM905

NOUNS = """
acorn anchor apple apron badge bakery balcony bamboo banner barley barrel basket beacon bell berry blanket blossom
bonfire bottle boulder bracelet branch brick bridge broom bucket button cabin cactus camel canal candle canyon cargo
carpet castle cattle cedar cellar chapel cherry chestnut chimney circus cliff cloak clover coffee comet compass
copse coral cottage cradle crane creek cricket crown crystal cupboard curtain dagger daisy desert diamond dolphin
donkey dragon drum eagle easel echo elbow ember engine falcon feather fence ferry fiddle finger flannel flute forest
fossil fountain fox galaxy garden garlic ginger glacier glove goblet goose granite grape guitar hammer harbour harp
harvest hazel hedge helmet heron hill honey horizon hornet island ivy jacket jewel jungle kettle kite ladder lagoon
lamp lantern laurel lemon library lily linen lizard lobster locket magnet mango maple market meadow melon mill
mirror monkey moss mountain mushroom mustard napkin needle nest nutmeg oar oasis ocean orchard organ otter owl
oyster paddle palace panther parcel parrot pasture pebble pelican pencil pepper piano pigeon pillow pine planet
plough pocket pony poppy pottery prairie prism pumpkin puzzle quarry quill rabbit radish raven reed ribbon river
robin rocket rudder saddle sailor salmon sandal satchel scarf seal shell shepherd shovel skylark sparrow spider
spoon spruce squirrel stable statue stream summit swallow tavern teapot temple thistle thunder ticket tiger timber
torch tower trumpet tulip tunnel turnip turtle valley vessel village violin wagon walnut walrus water weaver wheel
whistle willow window wizard wolf yacht zebra
""".split()  # noqa: SIM905


def phrases(draw: Random) -> Iterator[str]:
    """Distinct names of two words, such as ``quiet-lantern``."""
    return _distinct(lambda: f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}")


def compounds(draw: Random) -> Iterator[str]:
    """Distinct single words of two nouns: enough of them for lists of any length that a model reads."""
    return _distinct(lambda: draw.choice(NOUNS) + draw.choice(NOUNS))


def numbers(draw: Random, digits: int = 7) -> Iterator[str]:
    return _distinct(lambda: str(draw.randrange(10 ** (digits - 1), 10**digits)))


def identifiers(draw: Random) -> Iterator[str]:
    """Distinct random UUIDs."""
    return _distinct(lambda: str(UUID(int=draw.getrandbits(128), version=4)))


def letters(draw: Random, length: int) -> Iterator[str]:
    """Distinct words that mean nothing."""
    return _distinct(lambda: "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=length)))


def _distinct(one: Callable[[], str]) -> Iterator[str]:
    seen: set[str] = set()
    misses = 0
    while misses < MOST_MISSES:
        word = one()
        misses = misses + 1 if word in seen else 0
        if not misses:
            seen.add(word)
            yield word
    raise InputError(f"there are not more than {len(seen):,} different words to draw from; take a shorter length")
