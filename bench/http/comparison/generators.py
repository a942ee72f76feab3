"""What makes the load: our own generator, or wrk as a check on it."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass

from harness import machine
from harness.paths import BUILD, throng_binary

from . import work


@dataclass(frozen=True)
class Load:
    mode: str  # blank or work
    connections: int
    keep_alive: bool
    pipeline: int
    method: str  # of work
    duration_s: float
    warmup_s: float


@dataclass(frozen=True)
class Result:
    requests: int
    per_s: float
    per_cpu_s: float
    errors: int
    rss_mb: float
    generator_share: float  # of one core


FOLDER = BUILD / "http"


def document() -> str:
    """The work document as a file, for the generator."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "document.json"
    path.write_bytes(work.pretty(work.DOCUMENT))
    return str(path)


def run(command: list[str], timeout_s: float) -> str:
    """What a generator on its core said."""
    pinned = machine.pinned(machine.GENERATOR_CORE)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, preexec_fn=pinned)
    except subprocess.TimeoutExpired:
        raise machine.CellFailed("the generator did not end") from None
    if not done.stdout.strip():
        raise machine.CellFailed(f"the generator said {done.stderr.strip()!r}")
    return done.stdout


class Throng:
    """`throng bench http`: counts after a warm-up, and reads the server's CPU clock when it begins and ends to count."""

    def command(self, load: Load, port: int, pid: int) -> list[str]:
        command = [str(throng_binary()), "bench", "http", f"http://127.0.0.1:{port}/", "--json"]
        command += ["--connections", str(load.connections), "--server-pid", str(pid)]
        command += ["--duration", f"{load.duration_s}s", "--warmup", f"{load.warmup_s}s"]
        if load.pipeline > 1:
            command += ["--pipeline", str(load.pipeline)]
        if not load.keep_alive:
            command.append("--no-keep-alive")
        if load.mode == "work":
            command += ["--method", load.method, "--header", "Content-Type: application/json"]
            command += ["--body-file", document()]
        return command

    def measure(self, load: Load, server: machine.Server) -> Result:
        text = run(self.command(load, server.port, server.pids[0]), load.duration_s + load.warmup_s + 60)
        return self.read(text)

    def read(self, text: str) -> Result:
        report = json.loads(text)
        result, errors = report["result"], report["errors"]
        per_cpu_s = result["requests_per_server_cpu_s"]
        if not per_cpu_s:
            raise machine.CellFailed(f"no figure: {errors.get('first') or report['verdict']}")
        return Result(
            requests=result["requests"],
            per_s=result["requests_per_s"],
            per_cpu_s=per_cpu_s,
            errors=sum(count for count in errors.values() if isinstance(count, int)),
            rss_mb=((report["server"] or {}).get("memory") or {}).get("rss_bytes", 0) / 1e6,
            generator_share=report["generator"]["cpu"]["cpu_s"] / result["measured_s"],
        )


class Wrk:
    """wrk: checks nothing but statuses, and counts from the first connect on, which favours nobody."""

    def command(self, load: Load, port: int, script: str) -> list[str]:
        if shutil.which("wrk") is None:
            raise machine.CellFailed("wrk is not installed (Debian: apt install wrk)")
        command = ["wrk", "--threads", "1", "--connections", str(load.connections), "--timeout", "30s"]
        return [*command, "--duration", f"{max(1, round(load.duration_s))}s", "--script", script, f"http://127.0.0.1:{port}/"]

    def script(self, load: Load) -> str:
        lines = [f'wrk.headers["Connection"] = "{"keep-alive" if load.keep_alive else "close"}"']
        if load.mode == "work":
            lines.append(f'wrk.method = "{load.method}"')
            lines.append('wrk.headers["Content-Type"] = "application/json"')
            lines.append(f'wrk.body = io.open("{document()}"):read("*a")')
        if load.pipeline > 1:
            lines.append(f"init = function() requests = string.rep(wrk.format(), {load.pipeline}) end")
            lines.append("request = function() return requests end")
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / "wrk.lua"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def measure(self, load: Load, server: machine.Server) -> Result:
        served, own = server.cpu_seconds(), machine.child_cpu_seconds()
        text = run(self.command(load, server.port, self.script(load)), load.duration_s + 60)
        cpu_s, own = server.cpu_seconds() - served, machine.child_cpu_seconds() - own
        with open(f"/proc/{server.pids[0]}/status") as status:
            rss = re.search(r"VmRSS:\s+(\d+)", status.read())
        return self.read(text, cpu_s, own, int(rss[1]) * 1024 / 1e6 if rss else 0.0)

    def read(self, text: str, cpu_s: float, own_s: float, rss_mb: float) -> Result:
        counted = re.search(r"(\d+) requests in ([\d.]+)(m?s|m)", text)
        if counted is None or int(counted[1]) == 0:
            raise machine.CellFailed(f"wrk said {text.strip()!r}")
        seconds = float(counted[2]) * {"ms": 1e-3, "s": 1.0, "m": 60.0}[counted[3]]
        wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
        broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
        errors = int(wrong[1]) if wrong else 0
        errors += sum(map(int, broken.groups())) if broken else 0
        requests = int(counted[1])
        return Result(requests, requests / seconds, requests / cpu_s, errors, rss_mb, own_s / seconds)


GENERATORS = {"throng": Throng(), "wrk": Wrk()}
