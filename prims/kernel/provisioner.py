"""How jupyter_client starts a kernel inside the walls. Named by the kernelspec `prims`.

The server hands over a `Launch` that it has prepared. Started by anybody else (JupyterLab, nbclient, papermill), the
provisioner prepares a throw-away one itself: default packages, an empty workspace, the operator's isolation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase

from prims import config
from prims.errors import IsolationUnavailable, KernelStartError
from prims.isolation.network import start_proxy, unavailable
from prims.isolation.walls import Box, Places, Walls
from prims.kernel.folders import make_box, make_session_folder, remake_run_folder
from prims.kernel.forkserver import ForkServer
from prims.state import state_folder, sweep

_log = logging.getLogger(__name__)

CONNECTION_FILE = "kernel.json"


def kernelspec_folder() -> Path:
    """The folder that holds our kernelspec: beside the package in a checkout, within it when installed."""
    package = Path(__file__).parents[1]
    inside = package / "kernelspecs"
    return inside if inside.is_dir() else package.parent / "kernelspecs"


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel to be started: in these walls, with this view, its text to these pipes.

    `private` is a folder that the kernel cannot see; the server's own connection file goes there.
    """

    walls: Walls | ForkServer
    box: Box
    private: Path
    stdout: int
    stderr: int
    once: bool = True


def kernel_environment(places: Places) -> dict[str, str]:
    """Everything that the kernel finds in its environment: an allow-list, nothing of the server's."""
    scripts = [f"{places.venv}/bin", *(f"{layer}/bin" for layer in places.layers)]
    return {
        "PATH": ":".join([*scripts, "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": places.home,
        "TMPDIR": places.tmp,
        "IPYTHONDIR": f"{places.home}/.ipython",
        "VIRTUAL_ENV": places.venv,
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/sh",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }


class SandboxProvisioner(KernelProvisionerBase):  # type: ignore[misc]
    """A kernel in walls. Killing it ends everything that its code started."""

    process: Any = None  # a Popen, or a ForkedProcess in its place
    launch: Launch | None = None
    _own: AsyncExitStack | None = None
    _sockets: str | None = None

    @property
    def has_process(self) -> bool:
        return self.process is not None

    async def poll(self) -> int | None:
        return 0 if self.process is None else self.process.poll()

    async def wait(self) -> int | None:
        while self.process is not None and self.process.poll() is None:  # noqa: ASYNC110  (it sets no event of ours)
            await asyncio.sleep(0.02)
        code = self.process.returncode if self.process is not None else None
        self.process = None
        return code

    async def send_signal(self, signum: int) -> None:
        if self.process is None or self.launch is None or self.process.poll() is not None:
            return
        if signum == 0:
            return
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self.launch.walls.kill(self.process)
            return
        # Never to the outer process: it would end with everything in it.
        inner = self.launch.walls.inner_pid(self.process)
        if inner is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(inner, signum)

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        self.launch = kwargs.pop("prims_launch", None) or self.launch
        kwargs.pop("extra_arguments", None)
        kwargs.pop("env", None)
        if self.launch is None:
            async with AsyncExitStack() as stack:
                self.launch = await _throw_away(stack)
                self._own = stack.pop_all()
        launch, manager = self.launch, self.parent
        if self._sockets is None:
            self._sockets = Path(tempfile.mkdtemp(prefix="k", dir=launch.box.run)).name
        else:
            # A restart: clients keep the addresses that they know, but nothing that the earlier code has planted there.
            remake_run_folder(launch.box)
            (launch.box.run / self._sockets).mkdir(mode=0o700)
        sockets = launch.box.run / self._sockets
        manager.transport = "ipc"
        manager.ip = str(sockets / "s")
        manager.connection_file = str(launch.private / CONNECTION_FILE)
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        places = launch.walls.places(launch.box)
        values = {
            "kernel_files": places.kernel,
            "connection_file": f"{places.run}/{sockets.name}/{CONNECTION_FILE}",
        }
        argv = [arg.format_map(values) for arg in self.kernel_spec.argv]
        argv[0] = f"{places.venv}/bin/python"
        inner = {**self.connection_info, "ip": f"{places.run}/{sockets.name}/s"}
        inner = {k: v.decode() if isinstance(v, bytes) else v for k, v in inner.items()}
        (sockets / CONNECTION_FILE).write_text(json.dumps(inner))
        if launch.box.uid is not None:
            for path in (sockets, sockets / CONNECTION_FILE):
                os.chown(path, launch.box.uid, launch.box.uid)
        launched: dict[str, Any] = await super().pre_launch(
            cmd=[*argv, *(["--once"] if launch.once else [])], env=kernel_environment(places), **kwargs
        )
        return launched

    def _finalize_env(self, env: dict[str, str]) -> None:
        """Keep the environment as `kernel_environment` made it."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        assert self.launch is not None
        launch = self.launch
        # In this thread on purpose: the kernel dies with the thread that started it, and this one lives longest.
        walls, pipes = launch.walls, {"stdout": launch.stdout, "stderr": launch.stderr}
        if isinstance(walls, ForkServer):
            try:
                self.process = await walls.fork(launch.box, cmd, kwargs["env"], **pipes)
                return self.connection_info
            except KernelStartError as problem:
                _log.warning("a kernel is started and not forked: %s", problem)
        self.process = walls.spawn(launch.box, cmd, kwargs["env"], **pipes)
        return self.connection_info

    async def cleanup(self, restart: bool = False) -> None:
        if self._own is not None and not restart:
            await self._own.aclose()
            self._own = None


async def _throw_away(stack: AsyncExitStack) -> Launch:
    """All that a kernel needs which nobody prepared, removed with the stack."""
    from prims.isolation.probe import choose
    from prims.isolation.uids import uid_for
    from prims.kernel.environment import Environments
    from prims.kernel.venv import create_venv

    settings = config.load()
    await asyncio.to_thread(sweep, settings.state_dir)
    folder = stack.enter_context(state_folder(settings.state_dir))
    walls = await choose(settings.isolation, folder)
    async with Environments(settings, config.tool_environment()) as environments:
        environment = await environments.base()
        app_data = environments.app_data
    uid = stack.enter_context(uid_for(walls))
    box = make_box(folder, folder / "session", environment.layers, settings.limits(), uid)
    make_session_folder(folder / "session", walls.places(box).mounts, uid)
    await asyncio.to_thread(create_venv, box.venv, walls.places(box).layers, app_data)
    if reason := unavailable(settings.network, walls.name):
        raise IsolationUnavailable(reason)
    await stack.enter_async_context(start_proxy(box))
    null = os.open(os.devnull, os.O_WRONLY)
    stack.callback(os.close, null)
    return Launch(walls, box, folder, null, null, once=False)
