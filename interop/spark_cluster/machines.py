"""Machines: a network, a tree of files and processes of their own each, joined by a bridge.

All are namespaces of processes that end with this one, whatever ends it; so do the mounts and the links. What
a killed run leaves behind is a folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bench.kafka import SetupError
from pipeline.processes.process_tree import Process, living, signal_all, tree, wait_gone

__all__ = ["Bridge", "Machine", "Program", "folder_of_run", "in_network_of_its_own", "insist_on_namespaces"]

SCRIPT = Path(__file__).with_name("machine.sh")
NETWORK = "10.77.0"
UP_WITHIN_S = 60.0
GONE_WITHIN_S = 60.0
INSIDE = "COTERIE_INSIDE_NETWORK"
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")
# Nothing of this process's environment: a machine has its own.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def insist_on_namespaces() -> None:
    """Raise SetupError with what to do unless this process can make machines."""
    if os.geteuid() != 0:
        raise SetupError("the machines are Linux namespaces, which only root makes: run this suite as root")
    missing = [one for one in ("unshare", "nsenter", "ip", "setpriv", "pivot_root") if not shutil.which(one)]
    if missing:
        raise SetupError(f"there is no {', '.join(missing)} (Debian: apt-get install util-linux iproute2)")


def in_network_of_its_own() -> None:
    """Go on in a network and with mounts that nobody else has."""
    if INSIDE in os.environ:
        return
    os.environ[INSIDE] = "1"
    words = [sys.executable, "-m", "interop.spark_cluster", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "--net", "--mount", *words])


@contextmanager
def folder_of_run(place: Path) -> Iterator[Path]:
    """Yield a new folder in a place, once what killed runs have left there is removed; removed at the end.

    Each run holds a lock as long as it lives.
    """
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob("run-*"):
        with (left / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(left)
    folder = place / f"run-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def run(*words: str) -> None:
    """Run a command; raises SetupError with its words if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(words)}: {done.stderr.strip()}")


class Bridge:
    """What joins the machines, and this process, which is the first on it."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """`names` are those of all machines that there will be; each has the file of all addresses."""
        self.folder = folder
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=2)}
        self.hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in self.addresses.items())]
        self.hosts.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Make it, and have this process know the names."""
        run("mount", "--bind", str(self.hosts), "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")

    def join(self, name: str, pid: int) -> None:
        """Give the machine whose first process that is its link."""
        within = ("nsenter", "--target", str(pid), "--net", "ip")
        link = ("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", *link)
        run("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
        run(*within, "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        run(*within, "link", "set", "eth0", "up")

    def leave(self, name: str) -> None:
        """Take a machine's link away."""
        run("ip", "link", "delete", f"to-{name}")

    def cut(self, name: str) -> None:
        """Take a machine off the network: nothing arrives, and nobody is told."""
        run("ip", "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """Join it again."""
        run("ip", "link", "set", f"to-{name}", "up")


class Program:
    """A program on a machine, and all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def family(self) -> list[Process]:
        """Its processes, without the one that went into the machine for it."""
        return [one for one in tree(self.process.pid) if one.pid != self.process.pid]

    @property
    def ended(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll()

    def kill(self) -> None:
        """Kill the program itself, at once; what it has started is left to itself."""
        signal_all(self.family[:1], signal.SIGKILL)
        self.process.wait(GONE_WITHIN_S)

    def end(self) -> None:
        """End it politely, if it runs, and what it has started; kill what does not obey."""
        family = self.family
        signal_all(family[:1], signal.SIGTERM)
        left = wait_gone(family, within_s=GONE_WITHIN_S)
        signal_all(left, signal.SIGKILL)
        self.process.wait(GONE_WITHIN_S)

    def last_words(self, lines: int = 25) -> str:
        """The end of its log."""
        told = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in told if not line.lstrip().startswith("at ")][-lines:])


class Machine:
    """One machine. Its disk is a folder of this one's, which sees it, and no other machine does."""

    def __init__(self, bridge: Bridge, name: str) -> None:
        self.name, self.disk = name, bridge.folder / name
        self._bridge, self._root = bridge, bridge.folder / f"{name}.root"
        self._holder: subprocess.Popen[bytes] | None = None
        self._programs: list[Program] = []
        self._first = 0

    def start(self, sees: Mapping[str, Path]) -> None:
        """Start it; at each place that is named it sees a file or a folder of this machine's, read-only."""
        for folder in (self.disk, self._root):
            folder.mkdir(exist_ok=True)
        words = [str(self._root), str(self.disk), str(self._bridge.hosts)]
        words += [f"{here}={place}" for place, here in sees.items()]
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", str(SCRIPT), self.name]
        # Killed when this process is, and with it all that is in its namespaces.
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *unshare, *words], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            raise SetupError(f"machine {self.name} did not start: its script says why above")
        (first,) = [one.pid for one in living() if one.parent == self._holder.pid]
        self._first = first
        self._bridge.join(self.name, first)

    def entering(self) -> list[str]:
        """Return the words before those of a command that is to run on it."""
        return ["nsenter", "--target", str(self._first), *NAMESPACES, "--"]

    def run(
        self,
        log: str,
        *words: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        core: int | None = None,
    ) -> Program:
        """Start a program, with its output in a file of the disk, maybe on one core alone."""
        path = self.disk / log
        path.parent.mkdir(parents=True, exist_ok=True)
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        given = {"PATH": PATH, "HOME": "/var", "LANG": "C.UTF-8", **environment}
        told = [f"{name}={value}" for name, value in given.items()]
        with path.open("ab") as file:
            process = subprocess.Popen(
                [*self.entering(), "env", "--ignore-environment", "--chdir=/var", *told, *pinned, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        program = Program(process, path)
        self._programs.append(program)
        return program

    def processes(self) -> list[Process]:
        """Return all that runs on it, but its first process and those that went into it."""
        everyone = living()
        roots = [self._first, *(one.process.pid for one in self._programs)]
        return [one for root in roots for one in tree(root, everyone) if one.pid not in roots]

    def stop(self) -> None:
        """End all its processes at once, of which others hear, its files but the disk, and its link."""
        if self._holder is None:
            return
        with_it = self.processes()
        signal_all(with_it, signal.SIGKILL)
        left = wait_gone(with_it, within_s=GONE_WITHIN_S)
        if self._first:
            self._bridge.leave(self.name)  # it would go with its network, whenever the kernel comes to that
        self._holder.kill()
        self._holder.wait(GONE_WITHIN_S)
        for program in self._programs:
            program.process.wait(GONE_WITHIN_S)
        self._programs.clear()
        self._holder, self._first = None, 0
        if left:
            raise SetupError(f"machine {self.name}: {left} survived SIGKILL")
