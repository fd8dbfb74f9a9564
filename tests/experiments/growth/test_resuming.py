"""The context-growth experiment: stopped, continued, several at a time; no work is done twice or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import CheckpointError, InputError
from contentrope.outputs import OutputFolder
from contentrope.results import read_json, write_json
from contentrope.training import DivergedError
from experiments import jobs
from experiments.experiment import Finished
from experiments.growth.run import Growth
from experiments.models import folder_of
from tests.experiments.growth.runs import TINY, Recorder, perplexities, run


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "whole", Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path / "parts", Recorder(interrupt=("rope", 3)))
    assert set(read_json(tmp_path / "parts" / "results.json")["variants"]) == {"content"}
    rest = Recorder()
    results = run(TINY, tmp_path / "parts", rest)
    assert rest.events[:3] == [("planned", 2, 1, 4), ("kept", "content"), ("trained", "rope", 4)]
    assert perplexities(results) == perplexities(expected)


def test_training_that_was_finished_is_not_lost_when_evaluation_is_interrupted(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def evaluated(self, name: str, said: str) -> None:
            raise KeyboardInterrupt

    config = replace(TINY, variants=("rope",))
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, Impatient())
    rest = Recorder()
    run(config, tmp_path, rest)
    assert rest.of("trained") == []
    assert rest.of("finished") == [("rope",)]


def test_a_result_that_cannot_be_written_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, variants=("rope",))

    def full(path: Path, data: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(sys.modules["experiments.runner"], "write_json", full)
    with pytest.raises(OSError, match="no space left"):
        run(config, tmp_path, Recorder())
    monkeypatch.undo()
    rest = Recorder()
    run(config, tmp_path, rest)
    assert rest.of("trained") == []


def test_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    first = run(TINY, tmp_path, Recorder())
    again = Recorder()
    assert perplexities(run(TINY, tmp_path, again)) == perplexities(first)
    assert again.events == [("planned", 2, 2, 4), ("kept", "content"), ("kept", "rope")]


def test_variants_and_seeds_can_be_added_later(tmp_path: Path) -> None:
    run(replace(TINY, variants=("rope",)), tmp_path, Recorder())
    added = Recorder()
    run(replace(TINY, variants=("content:competition=1",)), tmp_path, added)
    stored = read_json(tmp_path / "results.json")
    assert set(stored["variants"]) == {"rope", "content:competition=1"}
    assert stored["config"]["variants"] == ["rope", "content:competition=1"]
    assert added.of("trained")[0] == ("content:competition=1", 1)
    more = Recorder()
    run(replace(TINY, variants=("rope",), seeds=2), tmp_path, more)
    assert more.of("kept") == [("rope, seed 0",)]
    assert more.of("finished") == [("rope, seed 1",)]
    stored = read_json(tmp_path / "results.json")
    assert stored["config"]["seeds"] == 2
    assert {name: set(entry["runs"]) for name, entry in stored["variants"].items()} == {
        "rope": {"0", "1"},
        "content:competition=1": {"0"},
    }
    # Asking for less later forgets nothing.
    assert run(replace(TINY, variants=("rope",)), tmp_path, Recorder())["config"]["seeds"] == 2


def test_results_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    before = (tmp_path / "results.json").read_bytes()
    other = replace(TINY, training=replace(TINY.training, steps=5))
    with pytest.raises(InputError, match=r"config\.training\.steps: 5 here, 4 in the file.*another folder"):
        run(other, tmp_path, Recorder())
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_checkpoint_of_other_windows_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, Recorder(interrupt=("content", 2)))
    with pytest.raises(CheckpointError, match="length: 8 here, 16 in the file"):
        run(replace(TINY, length=8), tmp_path, Recorder())


def test_a_second_command_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    class Beside(Recorder):
        """Starts the other command when this one has read the results so far."""

        def planned(self, runs: int, kept: int, steps: int) -> None:
            with pytest.raises(InputError) as caught:
                run(replace(TINY, variants=("rope",)), tmp_path, Recorder())
            refused.append(str(caught.value))

    run(replace(TINY, variants=("content",)), tmp_path, Beside())
    assert str(tmp_path) in refused[0]
    assert str(os.getpid()) in refused[0]
    assert set(read_json(tmp_path / "results.json")["variants"]) == {"content"}
    run(replace(TINY, variants=("rope",)), tmp_path, Recorder())
    assert set(read_json(tmp_path / "results.json")["variants"]) == {"content", "rope"}


@pytest.mark.parametrize("name", ["model/config.json", "metrics.jsonl"])
def test_what_somebody_else_put_there_stops_the_run_before_it_trains(tmp_path: Path, name: str) -> None:
    theirs = folder_of(tmp_path, "rope", 0) / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    recorder = Recorder()
    with pytest.raises(InputError) as caught:
        run(TINY, tmp_path, recorder)
    assert str(theirs) in str(caught.value)
    assert recorder.of("trained") == []
    assert theirs.read_text() == "precious"


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = (
        "from dataclasses import replace; from pathlib import Path\n"
        "from contentrope.training import TrainConfig\n"
        "from tests.experiments.growth.runs import TINY, Recorder, run\n"
        "class Told(Recorder):\n"
        "    def trained(self, name, report): print(name, report.step, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    long = replace(TINY, training=TrainConfig(steps=1000000, batch_size=2))\n"
        f"    run(long, Path({str(tmp_path / 'run')!r}), Told(), jobs=2)\n"
    )
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as running:
        try:
            assert running.stdout is not None
            running.stdout.readline()
            os.kill(running.pid, signal.SIGKILL)
            running.stdout.read()  # ends when nobody has it open: all processes are gone
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    with OutputFolder(tmp_path / "run"):
        pass


def test_another_corpus_is_noticed(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    stored = read_json(tmp_path / "results.json")
    stored["corpus"]["sha256"] = "0" * 64
    write_json(tmp_path / "results.json", stored)
    with pytest.raises(InputError, match=r"corpus\.sha256"):
        run(TINY, tmp_path, Recorder())


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"experiment": "x"}',
        '{"experiment": "x", "config": 3, "corpus": 4, "variants": 5}',
        '{"experiment": "shakespeare", "config": {"seeds": [0], "variants": []}, "corpus": {}, "variants": {}}',
        '{"experiment": "shakespeare", "config": {"seeds": 1}, "corpus": {}, "variants": {}}',
        '{"experiment": "shakespeare", "config": {"seeds": 1}, "corpus": {}, "variants": {"rope": 3}}',
    ],
)
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match="not a result file"):
        run(TINY, tmp_path, Recorder())
    assert (tmp_path / "results.json").read_text() == content


def test_a_misspelt_option_stops_the_run_before_it_trains(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match="kompetition"):
        run(replace(TINY, variants=("rope", "content:kompetition=1")), tmp_path, recorder)
    assert recorder.events == []


def test_one_variant_that_diverges_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Growth.measure

    def measure_or_diverge(self: Growth, variant: str, *rest: Any) -> None:
        if variant == "content":
            raise DivergedError("step 3: loss nan")
        measure(self, variant, *rest)

    monkeypatch.setattr(Growth, "measure", measure_or_diverge)
    with pytest.raises(DivergedError, match="content: step 3: loss nan"):
        run(TINY, tmp_path, Recorder())
    assert set(read_json(tmp_path / "results.json")["variants"]) == {"rope"}


def test_processes_give_the_same_numbers_and_stop_where_they_can_go_on(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "one", Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path / "two", Recorder(interrupt=("rope", 2)), jobs=2)
    rest = Recorder()
    results = run(TINY, tmp_path / "two", rest, jobs=2)
    assert perplexities(results) == perplexities(expected)
    assert ("rope", 1) not in rest.of("trained"), "began anew"
    assert not list((tmp_path / "two").glob("runs/*/*/checkpoint"))


def test_processes_that_are_told_to_stop_finish_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asked to stop gives up its training, but never a result."""

    class Given:
        told: list[Any] = []

        def put(self, event: Any) -> None:
            self.told.append(event)

        def is_set(self) -> bool:
            return True

    def measure(self: Any, variant: str, seeds: Any, out: Any, device: str, tell: Any) -> None:
        tell(Finished(variant, 0, {}, ""))
        tell(("trained", variant))

    monkeypatch.setattr(jobs._Process, "told", Given(), raising=False)
    monkeypatch.setattr(jobs._Process, "stop", Given(), raising=False)
    monkeypatch.setattr(Growth, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        jobs._measure_apart(Growth(TINY), "rope", [0], Path(), "cpu")
    assert Given.told == [Finished("rope", 0, {}, "")]


def test_an_error_in_a_process_is_raised_here(tmp_path: Path) -> None:
    folder_of(tmp_path, "rope", 0).parent.mkdir(parents=True)
    folder_of(tmp_path, "rope", 0).write_text("a file where a folder should be")
    with pytest.raises(OSError, match="seed-0"):
        run(TINY, tmp_path, Recorder(), jobs=2)


def test_a_launch_of_several_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="start it once, with --jobs"):
        run(TINY, tmp_path, Recorder())
