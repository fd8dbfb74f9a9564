"""Adds documents to a store: run in several processes at once, and killed in the midst of it."""

import sys
import time

from contentrope.store import UnitStore
from tests.store.helpers import model_for


def main(folder: str, first: int, count: int, pause: float) -> None:
    store = UnitStore(folder, model_for())
    print("ready", flush=True)
    for number in range(first, first + count):
        store.add([[7 + number % 40, 8 + number // 40, 9]])
        print(number, flush=True)
        time.sleep(pause)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
