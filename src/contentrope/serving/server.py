"""Running a service: its socket, its signals, and how it ends.

SIGTERM and Ctrl-C let it finish what it has begun, for so many seconds, and refuse what comes meanwhile; a second one
ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from contentrope.errors import InputError
from contentrope.serving.app import create_app
from contentrope.serving.engine import READY
from contentrope.serving.service import Service

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_EVERY = 0.05
"""Seconds, while something is waited for."""
FLUSH = 5
"""Seconds to hand out what is finished."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to; port 0 is any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as failing:
            failing.callback(made.close)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(2048)
            failing.pop_all()
            return made
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen at {host}, port {port} ({error}); choose another --host or --port") from error


def is_loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """``serve()`` returns when the service has ended."""

    def __init__(self, service: Service, *, ready: Callable[[], None] = lambda: None) -> None:
        """``ready`` is called once the model is loaded."""
        config = uvicorn.Config(
            create_app(service),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=FLUSH,
        )
        super().__init__(config)
        self.service, self.ready = service, ready
        self._ending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Instead of uvicorn's, which would close connections before their answers are finished."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        engine = self.service.engine
        engine.start()
        loading = asyncio.create_task(self._loaded())
        try:
            await super().serve(sockets)
        finally:
            loading.cancel()
            await asyncio.to_thread(engine.stop)
        if engine.failure is not None:
            raise engine.failure

    def end(self) -> None:
        """Finish what has begun, and end; at once if asked again."""
        if self._ending is not None:
            self.should_exit = self.force_exit = True
            return
        self.service.engine.drain()
        self._ending = asyncio.get_running_loop().create_task(self._drained())

    async def _drained(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.service.limits.drain):
                while not self.service.engine.is_idle:
                    await asyncio.sleep(LOOK_EVERY)
        await asyncio.to_thread(self.service.engine.stop)  # whoever still waits is told so
        self.should_exit = True

    async def _loaded(self) -> None:
        engine = self.service.engine
        while engine.loaded is None and engine.failure is None:
            await asyncio.sleep(LOOK_EVERY)
        if engine.state == READY:
            self.ready()
        while engine.failure is None:
            await asyncio.sleep(LOOK_EVERY)
        self.should_exit = True
