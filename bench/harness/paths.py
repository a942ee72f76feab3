"""Where things are."""

import os
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
WORKSPACE = BENCH.parent
PEERS = BENCH / "peers"
RESULTS = BENCH / "results"
BUILD = BENCH / "target"  # everything that is built here, git-ignored
BIN = BUILD / "bin"
LOADGEN = BIN / "loadgen"


def throng_binary() -> Path:
    """Our own server as it ships: the build of the profile dist. Cargo's CARGO_TARGET_DIR is respected."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", WORKSPACE / "target"))
    return WORKSPACE / target / "dist" / "throng"


def lab_binary() -> Path:
    """The program with the test servers, built alike."""
    return throng_binary().with_name("lab")
