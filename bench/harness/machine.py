"""Processes, cores, ports and clocks of this machine."""

import os
import platform
import resource
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SERVER_CORE = 0
GENERATOR_CORE = 1
START_DEADLINE_S = 20.0


class CellFailed(Exception):
    """One measurement did not come about; the run goes on with the next."""


def pinned(*cores: int):
    """A preexec_fn: these cores, and as many descriptors as the hard limit allows."""

    def apply() -> None:
        os.sched_setaffinity(0, cores)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    return apply


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listeners(port: int) -> int:
    """Listening sockets on the port, of whatever address: several share one with SO_REUSEPORT."""
    listening = "0A"
    with open("/proc/net/tcp") as sockets:
        fields = [line.split() for line in sockets][1:]
    return sum(one[3] == listening and int(one[1].rpartition(":")[2], 16) == port for one in fields)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads, in nanosecond resolution (as clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def softirq_threads(cores: tuple[int, ...]) -> list[int]:
    """The kernel threads that do what interrupts of these cores left behind. A server that submits many sends at once
    leaves work there that no process is charged with. None where a container hides them."""
    names = {f"ksoftirqd/{core}" for core in cores}
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in names:
                found.append(int(comm.parent.name))
        except OSError:
            pass  # it has just ended
    return found


class Server:
    """Fresh server processes behind one port, nearly always one; they end with the `with` block."""

    def __init__(
        self,
        command: list[str],
        port: int,
        env: dict[str, str],
        cores: tuple[int, ...] = (SERVER_CORE,),
        processes: int = 1,
    ):
        self.port = port
        self._log = tempfile.TemporaryFile()
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                preexec_fn=pinned(*cores),
            )
            for _ in range(processes)
        ]
        self.pids = [process.pid for process in self._processes]
        self.softirq_threads = softirq_threads(cores)

    def __enter__(self) -> "Server":
        deadline = time.monotonic() + START_DEADLINE_S
        while self._all_live() and time.monotonic() < deadline:
            if listeners(self.port) >= len(self.pids):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            time.sleep(0.02)
        self.__exit__()
        raise CellFailed(f"the server did not listen: {self._last_words()}")

    def __exit__(self, *_) -> None:
        self.stop()

    def cpu_seconds(self) -> float:
        """Of all processes and of the kernel's threads that work for them; raises OSError when one has died."""
        return sum(cpu_seconds(pid) for pid in self.pids) + self.softirq_seconds()

    def softirq_seconds(self) -> float:
        """What of that no process is charged with."""
        return sum(cpu_seconds(pid) for pid in self.softirq_threads)

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _all_live(self) -> bool:
        return all(process.poll() is None for process in self._processes)

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
