"""What Ray is given: an engine that says how it is, and an application made of the words of a config file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from contentrope.errors import BackendError, CheckpointError, InputError
from contentrope.serving import deployment
from contentrope.serving.deployment import REPLICA, Replica, Signed, app
from contentrope.serving.engine import READY, STOPPED
from contentrope.serving.limits import Limits
from contentrope.serving.server import LOOPBACK_NAMES
from contentrope.serving.service import KEY_IN, Settings


async def started(settings: Settings) -> Replica:
    replica = Replica.__new__(Replica)
    await replica.__init__(settings, Limits())  # type: ignore[misc]
    return replica


def test_a_replica_is_healthy_until_its_engine_ends(model_folder: Path, tmp_path: Path) -> None:
    async def live() -> None:
        replica = await started(Settings(model=str(model_folder), store=str(tmp_path / "store"), name="tiny"))
        engine = replica.service.engine
        assert engine.state == READY
        replica.check_health()
        broken = Exception("a fault of the engine's own")

        def fail() -> bool:
            raise broken

        engine._turn = fail  # type: ignore[method-assign]
        engine.call(lambda: None)
        while engine.state != STOPPED:
            await asyncio.sleep(0.01)
        with pytest.raises(BackendError, match="of the engine's own"):
            replica.check_health()

    asyncio.run(live())


def test_a_replica_ends_with_its_engine(model_folder: Path, tmp_path: Path) -> None:
    async def live() -> None:
        replica = await started(Settings(model=str(model_folder), store=str(tmp_path / "store"), name="tiny"))
        replica.__del__()
        assert replica.service.engine.state == STOPPED
        assert not replica.service.engine._thread.is_alive()
        with pytest.raises(BackendError):
            replica.check_health()

    asyncio.run(live())


def test_a_replica_that_cannot_be_loaded_is_none(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": 1}')
    settings = Settings(model=str(model_folder), store=str(tmp_path), name="tiny")
    with pytest.raises(CheckpointError, match="another model"):
        asyncio.run(started(settings))


def test_every_answer_says_which_replica_gives_it() -> None:
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"c"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Signed(inner, "one")({}, None, send))  # type: ignore[arg-type]
    assert sent[0]["headers"] == [(b"a", b"b"), (REPLICA, b"one")]
    assert sent[1] == {"type": "http.response.body", "body": b"c"}


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Any:
    """Settings and limits that the words of a config file make."""
    monkeypatch.setattr(deployment, "application", lambda settings, limits: (settings, limits))
    monkeypatch.delenv(KEY_IN, raising=False)
    return lambda **more: app({"model": str(model_folder), "store": "memory://store", **more})


def test_a_config_file_describes_what_the_command_line_does(
    described: Any, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, limits = described()
    assert (settings.name, settings.key, settings.hosts, limits) == (model_folder.name, None, LOOPBACK_NAMES, Limits())
    (tmp_path / "key").write_text("a-secret\n")
    (tmp_path / "template").write_text("{{ messages }}")
    files = {"api_key_file": str(tmp_path / "key"), "chat_template": str(tmp_path / "template")}
    assert settings.precision == "model"
    settings, limits = described(name="mine", hosts=["example.org"], precision="int8", limits={"rows": 3}, **files)
    assert (settings.name, settings.key, settings.hosts) == ("mine", "a-secret", ("example.org",))
    assert (settings.template, settings.precision, limits.rows) == ("{{ messages }}", "int8", 3)
    assert "a-secret" not in repr(settings)
    assert described(hosts="any")[0].hosts is None
    monkeypatch.setenv(KEY_IN, "another")
    assert described()[0].key == "another"


def test_the_config_file_of_the_documentation_is_taken(described: Any, model_folder: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (found,) = yaml.safe_load(text)["applications"]
    (tmp_path / "key").write_text("a-secret")
    assert found["import_path"] == f"{app.__module__}:{app.__name__}"
    assert [one["name"] for one in found["deployments"]] == [deployment.NAME]
    changed = {"model": str(model_folder), "api_key_file": str(tmp_path / "key")}
    settings, limits = described(**{**found["args"], **changed})
    assert (settings.device, settings.hosts) == ("cuda", ("llm.example.org",))
    assert (limits.rows, limits.queue) == (32, 512)


WRONG: dict[str, dict[str, Any]] = {
    "an unknown word": {"api_key": "never here"},
    "a limit that is none": {"limits": {"row": 3}},
    "a limit of nothing": {"limits": {"rows": 0}},
    "one host": {"hosts": "example.org"},
    "no model": {"model": "/nowhere"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_file_that_says_something_else_is_refused(described: Any, case: str) -> None:
    with pytest.raises((InputError, CheckpointError)) as refused:
        described(**WRONG[case])
    assert "never here" not in str(refused.value)
