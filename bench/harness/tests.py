"""The work that the servers are given, and which figure of it counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    key: str  # field of the generator's JSON
    label: str
    digits: int = 0
    less_is_better: bool = False  # otherwise it is a rate, and large ones are shown in k and M


@dataclass(frozen=True)
class Test:
    name: str
    title: str
    arguments: tuple[str, ...]
    metrics: tuple[Metric, ...]
    seconds: float = 3.0  # about, with start and stop: for the estimate of a whole run
    connections: int = 100
    text: bool = False  # a bare echo has no text to check
    broadcast: bool = False


PER_CPU = (Metric("per_cpu_s", ""),)


def echo(name: str, title: str, size: int, connections: int = 100, pipeline: int = 1, flag: str = "") -> Test:
    arguments = ["echo", "--size", str(size), "--connections", str(connections), "--pipeline", str(pipeline)]
    if flag:
        arguments.append(flag)
    return Test(name, title, tuple(arguments), PER_CPU, connections=connections, text=bool(flag))


def idle(name: str, title: str, flag: str = "") -> Test:
    arguments = ["idle", "--connections", "15000", *([flag] if flag else [])]
    metrics = (
        Metric("rss_per_connection", "B/conn", less_is_better=True),
        Metric("idle_cpu_percent", "CPU %", 2, less_is_better=True),
    )
    return Test(name, title, tuple(arguments), metrics, seconds=6.0, connections=15000)


TESTS: dict[str, Test] = {
    test.name: test
    for test in (
        echo("echo100", "100 B", 100),
        echo("echo100p16", "100 B, pipeline 16", 100, pipeline=16),
        echo("echo1k", "1 KB", 1024),
        echo("echo16k", "16 KB", 16 * 1024),
        echo("echo1m", "1 MB", 1024 * 1024, connections=16),
        echo("echo100c10k", "100 B, 10,000 conns", 100, connections=10_000),
        echo("text1k", "text 1 KB", 1024, flag="--text"),
        echo("text16k", "text 16 KB", 16 * 1024, flag="--text"),
        echo("utf16k", "multi-byte text 16 KB", 16 * 1024, flag="--utf8"),
        Test(
            "open10k",
            "open loop, 10,000 conns x 10/s",
            ("open", "--connections", "10000", "--rate", "10", "--duration", "3"),
            (Metric("p50_us", "p50 us", 1, True), Metric("p99_us", "p99 us", 0, True)),
            seconds=6.0,
            connections=10_000,
        ),
        Test("connect", "connect+upgrade+echo", ("connect", "--connections", "64"), PER_CPU),
        Test(
            "broadcast",
            "broadcast to 15,000",
            ("broadcast", "--connections", "15000", "--path", "/ws/bench", "--publishes", "5"),
            (Metric("wall_ms", "wall ms", 1, True), Metric("server_cpu_ms", "CPU ms", 1, True)),
            seconds=6.0,
            connections=15_001,
            broadcast=True,
        ),
        idle("idle", "idle, 15,000 conns"),
        idle("idle-used", "idle after one echo each", "--touch"),
    )
}
