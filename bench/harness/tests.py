"""The work that the servers are given, and which figure of it counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .machine import GENERATOR_CORE, SERVER_CORE


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
    connections: int = 100  # of one server process: for the descriptor limit
    text: bool = False  # a bare echo has no text to check
    broadcast: bool = False
    deflate: bool = False
    context: bool = False  # compressed with the messages before as context
    servers: int = 1  # processes behind one port
    cores: tuple[int, ...] = (SERVER_CORE,)  # the servers'
    minus: tuple[str, ...] = ()  # other work for a second server; its figures are subtracted
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # more arguments, by server


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


def deflated_echo(name: str, title: str, size: int, context: bool) -> Test:
    arguments = ("echo", "--context" if context else "--deflate", "--size", str(size))
    metrics = (*PER_CPU, Metric("ratio", "ratio", 3, True))
    return Test(name, title, arguments, metrics, text=True, deflate=True, context=context)


def deflated_memory(name: str, title: str, context: bool) -> Test:
    """After 160 messages of 256 B on each: more than the largest window holds."""
    arguments = ("idle", "--context" if context else "--deflate", "--size", "256", "--connections", "1000")
    metrics = (Metric("rss_per_connection", "B/conn", less_is_better=True),)
    flags = ("--touches", "160", "--hold", "0.5")
    return Test(
        name, title, (*arguments, *flags), metrics, seconds=12.0, connections=1_001, text=True, deflate=True, context=context
    )


CHANNEL = ("--path", "/ws/bench")


def broadcast(name: str, title: str, subscribers: int, size: int = 100, publishes: int = 5, **more) -> Test:
    arguments = ("broadcast", "--connections", str(subscribers), "--size", str(size), *CHANNEL)
    arguments += ("--publishes", str(publishes), *more.pop("flags", ()))
    metrics = more.pop("metrics", None) or (
        Metric("wall_ms", "wall ms", 1, True),
        Metric("server_cpu_ms", "CPU ms", 1, True),
        Metric("rss_peak_growth_mb", "peak MB", 1, True),
    )
    connections = more.pop("connections", subscribers + 1)
    return Test(name, title, arguments, metrics, seconds=8.0, connections=connections, broadcast=True, **more)


def sweep(subscribers: int, **more) -> Test:
    """One point of cost against the number of subscribers: CPU a subscriber must not grow."""
    metrics = (
        Metric("server_cpu_us_each", "CPU us a subscriber", 2, True),
        Metric("wall_ms", "wall ms", 1, True),
    )
    name, title = f"broadcast-{subscribers}", f"broadcast to {subscribers:,}"
    return broadcast(name, title, subscribers, publishes=9, metrics=metrics, **more)


def channels(name: str, rate: int) -> Test:
    arguments = ("channels", "--connections", "15000", "--channels", "1000", "--rate", str(rate), *CHANNEL)
    arguments += ("--warmup", "1", "--duration", "6")
    metrics = (
        Metric("p50_us", "p50 us", 0, True),
        Metric("p99_us", "p99 us", 0, True),
        Metric("p999_us", "p99.9 us", 0, True),
        Metric("lost", "lost", 0, True),
        Metric("per_cpu_s", "deliveries"),
    )
    title = f"1,000 channels x 15, {rate:,} publishes/s"
    return Test(name, title, arguments, metrics, seconds=12.0, connections=16_000, broadcast=True)


def subscription(name: str, title: str, *flags: str) -> Test:
    """Idle members of channels, less idle connections without."""
    arguments = ("idle", "--connections", "15000", "--hold", "1")
    return Test(
        name,
        title,
        (*arguments, *CHANNEL, "--silent", *flags),
        (Metric("rss_per_connection", "B each", 1, True),),
        seconds=12.0,
        connections=15_001,
        broadcast=True,
        minus=arguments,
    )


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
        broadcast("broadcast", "broadcast to 15,000", 15_000),
        broadcast("broadcast16k", "broadcast of 16 KB to 15,000", 15_000, size=16 * 1024),
        sweep(1_000),
        sweep(5_000),
        sweep(10_000),
        sweep(18_000),
        # More than a process may have descriptors: four servers behind one port, whose kernel spreads the
        # connections by hash (15,000 each, +- 400), and four generator processes.
        sweep(
            60_000,
            flags=("--processes", "4"),
            connections=15_500,
            servers=4,
            settings={"throng": ("--set", "share_port=true")},
        ),
        # The generator sleeps during a publish, so both cores are the servers'.
        broadcast(
            "broadcast-2shards",
            "broadcast to 15,000, both cores free",
            15_000,
            publishes=9,
            cores=(SERVER_CORE, GENERATOR_CORE),
        ),
        channels("channels", 500),
        channels("channels-heavy", 2_000),
        Test(
            "slow",
            "a million queued messages of 1 KB",
            ("slow", "--connections", "1000", "--size", "1024", "--receive-buffer", "4096", *CHANNEL),
            (Metric("growth_mb", "MB", 1, True), Metric("bytes_per_reference", "B each", 1, True)),
            seconds=25.0,
            connections=1_001,
            broadcast=True,
            settings={"throng": ("--set", "max_backlog=2MiB", "--set", "write_timeout=2m")},
        ),
        subscription("subscription", "one channel's subscription"),
        subscription("subscription-channels", "subscription, 1,000 channels", "--channels", "1000"),
        deflated_echo("deflate1k", "deflate echo, 1 KB JSON", 1024, context=False),
        deflated_echo("context256", "deflate echo with context, 256 B JSON", 256, context=True),
        deflated_echo("context1k", "deflate echo with context, 1 KB JSON", 1024, context=True),
        deflated_memory("deflate-used", "deflate without context, after use", context=False),
        deflated_memory("context-used", "deflate with context, after use", context=True),
        broadcast(
            "broadcast-deflate",
            "broadcast of 1 KB JSON, deflated, to 10,000",
            10_000,
            size=1024,
            flags=("--deflate",),
            deflate=True,
            metrics=(Metric("server_cpu_ms", "CPU ms", 1, True), Metric("wall_ms", "wall ms", 1, True)),
        ),
        idle("idle", "idle, 15,000 conns"),
        idle("idle-used", "idle after one echo each", "--touch"),
    )
}
