"""Processes, cores, ports and clocks of this machine."""

import os
import platform
import resource
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

SERVER_CORE = 0
GENERATOR_CORE = 1
START_DEADLINE_S = 20.0


class CellFailed(Exception):
    """One measurement did not come about; the run goes on with the next."""


def pinned(core: int):
    """A preexec_fn: one core, and as many descriptors as the hard limit allows."""

    def apply() -> None:
        os.sched_setaffinity(0, {core})
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    return apply


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads, in nanosecond resolution (as clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


class Server:
    """A fresh server process on its own core; ends with the `with` block."""

    def __init__(self, command: list[str], port: int, env: dict[str, str], core: int = SERVER_CORE):
        self.port = port
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            preexec_fn=pinned(core),
        )
        self.pid = self._process.pid

    def __enter__(self) -> "Server":
        deadline = time.monotonic() + START_DEADLINE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise CellFailed(f"the server did not listen: {self._last_words()}")

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def core_busy_seconds() -> float:
    """Time that the two measured cores spent on anything, stolen time included."""
    ticks = 0
    wanted = {f"cpu{SERVER_CORE}", f"cpu{GENERATOR_CORE}"}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name in wanted:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
                ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    kernel: str
    descriptors: int

    @staticmethod
    def describe() -> "Machine":
        model = "unknown"
        with open("/proc/cpuinfo") as cpuinfo:
            for line in cpuinfo:
                if line.startswith("model name"):
                    model = line.split(":", 1)[1].strip()
                    break
        return Machine(
            cpu=model,
            cores=os.cpu_count() or 1,
            kernel=platform.release(),
            descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        )
