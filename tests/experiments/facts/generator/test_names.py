"""The names: from Faker or from what Faker left in the cache, and never others."""

import hashlib
import sys
import types
from pathlib import Path

import pytest

from contentrope.errors import InputError
from experiments.facts.generator.world import SHA256, World, first_names


@pytest.fixture
def no_faker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faker", None)
    monkeypatch.setitem(sys.modules, "faker.providers.person.en", None)


def complaint() -> str:
    with pytest.raises(InputError) as caught:
        first_names()
    return str(caught.value)


def test_the_list() -> None:
    found = first_names()
    assert len(found) == len(set(found)) == 6_548
    assert list(found) == sorted(found)
    assert all(name.isascii() and name.isalpha() and name.islower() and 2 <= len(name) <= 8 for name in found)
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    assert digest == "7228801b9c163990052a8dc580331ed62f4efb024dc63999ac091833a55831e1"


def test_it_is_kept_and_read_where_faker_is_missing(own_cache: Path, request: pytest.FixtureRequest) -> None:
    found = first_names()
    assert [path.name for path in own_cache.iterdir()] == ["names.txt"]
    request.getfixturevalue("no_faker")
    assert first_names() == found
    assert World(training_names=8, test_names=8).train.names[0] in found


def test_a_kept_list_is_not_written_again(own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "names.txt").write_text("kept")
    first_names()
    assert (own_cache / "names.txt").read_text() == "kept"


def test_with_faker_a_cache_that_cannot_be_written_does_not_matter(own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    assert len(first_names()) == 6_548


@pytest.mark.usefixtures("no_faker")
def test_without_both_it_says_what_to_install(own_cache: Path) -> None:
    said = complaint()
    assert f"{own_cache / 'names.txt'} is not there" in said
    assert "pip install contentrope[facts]" in said


@pytest.mark.usefixtures("no_faker")
def test_a_damaged_cache_is_refused(own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "names.txt").write_text("adam\nbrian")
    said = complaint()
    found = hashlib.sha256(b"adam\nbrian").hexdigest()
    for part in (str(own_cache / "names.txt"), "found 2", found, SHA256, "delete it"):
        assert part in said


@pytest.mark.usefixtures("no_faker")
def test_a_cache_that_cannot_be_read_is_named(own_cache: Path) -> None:
    (own_cache / "names.txt").mkdir(parents=True)
    assert f"{own_cache / 'names.txt'} cannot be read" in complaint()


def test_another_faker_with_other_names_is_refused_and_not_kept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = types.ModuleType("faker")
    provider = types.ModuleType("faker.providers.person.en")
    vars(other)["VERSION"] = "99.1"
    vars(provider)["Provider"] = types.SimpleNamespace(
        first_names=("Adam", "Brian", "Zoë", "Al-Amin", "X", "Maximiliano")
    )
    monkeypatch.setitem(sys.modules, "faker", other)
    monkeypatch.setitem(sys.modules, "faker.providers.person.en", provider)
    said = complaint()
    found = hashlib.sha256(b"adam\nbrian").hexdigest()  # the others are no names of 2 to 8 letters
    for part in ("Faker 99.1", found, SHA256, "pip install faker==40.54.0"):
        assert part in said
    assert not own_cache.exists()
