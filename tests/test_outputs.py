"""A folder that one command holds: nobody else's files are touched, and a kill at any moment leaves it usable."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from contentrope import files
from contentrope.errors import InputError, WriteError
from contentrope.files import HIDDEN, append_line, begin_log, require_own, write_folder, write_whole
from contentrope.outputs import OutputFolder, require_result


def model(content: str, *more: str) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        for name in ("weights.bin", "deep/er/config.json", *more):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(content)

    return write


def tree(folder: Path) -> dict[str, bytes]:
    """All files but those of the record."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(HIDDEN)}


WITHOUT_TORCH = f"""
import sys, types
package = types.ModuleType("contentrope")
package.__path__ = [{str(Path(files.__file__).parent)!r}]
sys.modules["contentrope"] = package
"""


def fresh(program: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", WITHOUT_TORCH + textwrap.dedent(program), *map(str, arguments)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that a command has written to."""
    with OutputFolder(tmp_path / "out"):
        write_whole(tmp_path / "out" / "result.json", b"1")
        write_folder(tmp_path / "out" / "model", model("first"))
        begin_log(tmp_path / "out" / "log.jsonl", b"")
        append_line(tmp_path / "out" / "log.jsonl", b"1\n")
    return tmp_path / "out"


# --- what is one's own ---------------------------------------------------------------------------------------------


def test_what_was_written_is_replaced(out: Path) -> None:
    with OutputFolder(out) as held:
        held.claim("result.json", "model", "log.jsonl", "new")
        write_whole(out / "result.json", b"2")
        write_folder(out / "model", model("second", "more"))
        begin_log(out / "log.jsonl", b"")
    assert tree(out) == {
        "result.json": b"2",
        "model/weights.bin": b"second",
        "model/deep/er/config.json": b"second",
        "model/more": b"second",
        "log.jsonl": b"",
    }


def change(path: Path) -> None:
    path.write_text("precious")


def replace_by_link(path: Path) -> None:
    shutil.move(path, path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("result.json", change, "result.json"),
        ("result.json", replace_by_link, "result.json"),
        ("model", lambda path: change(path / "weights.bin"), "model/weights.bin"),
        ("model", lambda path: change(path / "deep" / "notes.txt"), "model/deep/notes.txt"),
        ("model", lambda path: replace_by_link(path / "weights.bin"), "model/weights.bin"),
        ("model", replace_by_link, "model"),
        ("log.jsonl", change, "log.jsonl"),
        ("foreign", lambda path: path.mkdir() or change(path / "weights.bin"), "foreign/weights.bin"),
        ("foreign.json", change, "foreign.json"),
        ("broken", lambda path: path.symlink_to("nowhere"), "broken"),
    ],
)
def test_what_is_somebody_elses_is_refused_and_stays(
    out: Path, name: str, harm: Callable[[Path], None], said: str
) -> None:
    harm(out / name)
    before = tree(out)
    with OutputFolder(out) as held:
        for attempt in (
            lambda: held.claim("result.json" if name != "result.json" else "new", name),
            lambda: require_own(out / name),
            lambda: write_whole(out / name, b"ours"),
            lambda: write_folder(out / name, model("ours")),
            lambda: begin_log(out / name, b""),
        ):
            with pytest.raises((InputError, WriteError)) as caught:
                attempt()
            assert str(out / name) in str(caught.value)
        with pytest.raises(InputError) as caught:
            held.claim(name)
        assert str(out / said) in str(caught.value)
        assert tree(out) == before
    assert tree(out) == before


def test_files_beside_are_no_obstacle(out: Path) -> None:
    change(out / "config.json")
    with OutputFolder(out) as held:
        held.claim("result.json", "model", "log.jsonl")
        write_whole(out / "result.json", b"2")
    assert (out / "config.json").read_text() == "precious"


def test_the_same_bytes_need_no_record(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_bytes(b"the same")
    with OutputFolder(tmp_path):
        write_whole(tmp_path / "report.md", b"the same")
        write_whole(tmp_path / "report.md", b"another")
    assert tree(tmp_path) == {"report.md": b"another"}


def test_what_is_read_is_not_written_over(out: Path) -> None:
    (out / "link").symlink_to("model")
    with OutputFolder(out) as held:
        for given in (out / "model", out / "model" / "deep", out / "link", os.path.relpath(out / "model")):
            with pytest.raises(InputError) as caught:
                held.claim("result.json", "model", inputs=[given])
            assert str(given) in str(caught.value)
        held.claim("result.json", "model", inputs=[out, out.parent, "gpt2", out / "other"])


def test_a_copy_is_as_good(out: Path, tmp_path: Path) -> None:
    for copy in (shutil.copytree(out, tmp_path / "copy", copy_function=shutil.copyfile), tmp_path / "moved"):
        if not Path(copy).exists():
            shutil.move(out, copy)
        with OutputFolder(copy) as held:
            held.claim("result.json", "model", "log.jsonl")
            write_folder(Path(copy) / "model", model("second"))
        assert (Path(copy) / "model" / "weights.bin").read_text() == "second"


def test_without_a_record_nothing_is_ones_own(out: Path) -> None:
    shutil.rmtree(out / HIDDEN)
    with OutputFolder(out) as held:
        for name in ("result.json", "model", "log.jsonl"):
            with pytest.raises(InputError):
                held.claim(name)


@pytest.mark.parametrize("damage", [b'{"path": "foreign", "sha', b"\xff\xfe", b"[]", b'{"path": []}', b"[" * 100_000])
def test_a_damaged_record_loses_no_more_than_what_is_damaged(out: Path, damage: bytes) -> None:
    with (out / HIDDEN / "written.jsonl").open("ab") as file:
        file.write(damage)
    with OutputFolder(out) as held:
        held.claim("result.json", "model", "log.jsonl")
        write_whole(out / "result.json", b"2")
        held.claim("result.json")


def test_files_that_are_not_whole_are_not_recorded(out: Path) -> None:
    with OutputFolder(out) as held:
        write_folder(out / "model", lambda place: write_whole(place / "weights.bin", b"second"))
        assert not [name for name in held.entries() if name.startswith(HIDDEN)]
        held.claim("model")


def test_what_another_command_wrote_is_somebody_elses(out: Path) -> None:
    before = tree(out)
    with OutputFolder(out, "another") as held:
        for name in ("result.json", "model", "log.jsonl"):
            with pytest.raises(InputError):
                held.claim(name)
        write_whole(out / "new.json", b"theirs")
    with OutputFolder(out) as held:
        held.claim("result.json", "model", "log.jsonl")
        with pytest.raises(InputError):
            held.claim("new.json")
    assert tree(out) == {**before, "new.json": b"theirs"}


def test_nothing_is_left_where_nothing_was_written(tmp_path: Path) -> None:
    with OutputFolder(tmp_path / "deep" / "er"):
        pass
    with pytest.raises(InputError), OutputFolder(tmp_path):
        raise InputError("refused")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_nobody_keeps_is_only_written_where_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        write_folder(tmp_path / name, model("ours"))
        before = tree(tmp_path / name)
        with pytest.raises(InputError) as caught:
            write_folder(tmp_path / name, model("again"))
        assert str(tmp_path / name) in str(caught.value)
        assert tree(tmp_path / name) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"loss": 1}', "not JSON", "[" * 100_000, ""])
def test_a_single_result_replaces_only_its_like(tmp_path: Path, content: str) -> None:
    path = tmp_path / "evaluation.json"
    require_result(path, lambda found: "perplexity" in found)
    path.write_text('{"perplexity": {}}')
    require_result(path, lambda found: "perplexity" in found)
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        require_result(path, lambda found: "perplexity" in found)
    assert str(path) in str(caught.value)


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Written over, it would be gone for all programs."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is no ordinary file"):
        write_whole(tmp_path / "pipe", b"1.5")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_device_or_a_dead_link_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(InputError):
            require_result(path, lambda found: True)


# --- one at a time -------------------------------------------------------------------------------------------------

HOLD = """
import sys
from contentrope.outputs import OutputFolder
from contentrope.files import write_whole
with OutputFolder(sys.argv[1]) as out:
    write_whole(out.folder / "loss.json", b"1")
    (out.scratch / ".model.half").mkdir()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone_even_if_killed(tmp_path: Path) -> None:
    command = fresh(HOLD, tmp_path / "out")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(InputError) as caught, OutputFolder(tmp_path / "out"):
            pass
        for word in (str(tmp_path / "out"), str(first.pid), os.uname().nodename):
            assert word in str(caught.value)
        with OutputFolder(tmp_path / "out", part="report"):
            write_whole(tmp_path / "out" / "report.md", b"meanwhile")
        with OutputFolder(tmp_path / "out", leads=False):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert list((tmp_path / "out" / HIDDEN / "run.tmp").iterdir())
    with OutputFolder(tmp_path / "out") as held:
        assert not list(held.scratch.iterdir()), "what the killed one left is gone"
        held.claim("loss.json", "report.md")
        write_whole(tmp_path / "out" / "loss.json", b"2")


def test_one_holder_of_many_that_try_at_once(tmp_path: Path) -> None:
    program = """
    import sys, time
    from pathlib import Path
    from contentrope.errors import InputError
    from contentrope.outputs import OutputFolder
    for _ in range(30):
        try:
            with OutputFolder(sys.argv[1]):
                inside = Path(sys.argv[2])
                inside.touch(exist_ok=False)
                time.sleep(0.002)
                inside.unlink()
        except InputError:
            time.sleep(0.001)
    """
    running = [subprocess.Popen(fresh(program, tmp_path / "out", tmp_path / "inside")) for _ in range(4)]
    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert not (tmp_path / "inside").exists()


@pytest.mark.parametrize("moment", ["require_own", "note", "os.replace"])
def test_killed_at_any_moment_the_next_run_goes_on(out: Path, moment: str) -> None:
    program = """
    import os, signal, sys
    from contentrope import files
    from contentrope.files import Record
    from contentrope.outputs import OutputFolder
    from pathlib import Path
    target = os if sys.argv[2] == "os.replace" else Record
    name = sys.argv[2].removeprefix("os.")
    call, calls = getattr(target, name), []
    def kill(*arguments, **more):
        calls.append(1)
        if len(calls) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **more)
    def write(place):
        (place / "weights.bin").write_text("second")
    with OutputFolder(sys.argv[1]) as out:
        setattr(target, name, kill)
        files.write_whole(out.folder / "result.json", b"2")
        files.write_folder(out.folder / "model", write)
        files.write_whole(out.folder / "new.json", b"3")
    """
    killed = 0
    for count in range(1, 5):
        copy = Path(shutil.copytree(out, out.parent / f"copy-{count}"))
        done = subprocess.run(fresh(program, copy, moment, str(count)), check=False)
        killed += done.returncode == -signal.SIGKILL
        with OutputFolder(copy) as held:
            held.claim("result.json", "model", "new.json", "log.jsonl")
            write_folder(copy / "model", model("third"))
            assert not list(held.scratch.iterdir())
        assert (copy / "model" / "weights.bin").read_text() == "third"
    assert killed >= 3


# --- full disks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_failure_to_write_says_what_and_how_much(out: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before = tree(out)
    with OutputFolder(out) as held:
        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(WriteError) as caught:
            write_whole(out / "result.json", b"x" * 1234)
        assert caught.value.errno == number
        assert caught.value.filename == str(out / "result.json")
        assert str(out / "result.json") in str(caught.value)
        assert ("1,234" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))
        monkeypatch.undo()
        assert not list(held.scratch.iterdir())
    assert tree(out) == before


class RustError(Exception):
    """What safetensors and tokenizers raise."""


def test_a_full_disk_inside_a_library_is_the_same_error(out: Path) -> None:
    def full(place: Path) -> None:
        (place / "half").write_text("half")
        raise RustError("Error while serializing: I/O error: No space left on device (os error 28)")

    def broken(place: Path) -> None:
        raise RustError("tensors share memory")

    before = tree(out)
    with OutputFolder(out) as held:
        with pytest.raises(WriteError) as caught:
            write_folder(out / "model", full)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(out / "model"))
        with pytest.raises(RustError):
            write_folder(out / "model", broken)
        assert not list(held.scratch.iterdir())
    assert tree(out) == before


def test_a_failed_exchange_of_folders_puts_the_old_one_back(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, replace = tree(out), os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    with OutputFolder(out):
        monkeypatch.setattr(files.os, "replace", fail)
        with pytest.raises(WriteError):
            write_folder(out / "model", model("second"))
    assert tree(out) == before


def test_an_error_survives_the_way_from_another_process() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(WriteError(errno.ENOSPC, "x could not be written", "x")))
    assert (type(error), str(error), error.filename) == (WriteError, "x could not be written", "x")


def test_the_holder_is_told_as_json(tmp_path: Path) -> None:
    with OutputFolder(tmp_path) as held:
        told = json.loads((held.hidden / "run.json").read_text())
    assert told["pid"] == os.getpid()
    assert set(told) == {"pid", "host", "command", "since"}
