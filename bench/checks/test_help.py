"""Help of every script: python3 -m unittest discover bench/checks"""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ENOUGH = ("dirname", "env", "id", "python3", "sed", "sh")
"""Programs that help may need: with these alone no script installs, builds or measures."""


class Help(unittest.TestCase):
    def test_each_script_prints_its_help_and_does_nothing_else(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for program in ENOUGH:
                os.symlink(shutil.which(program), Path(folder) / program)
            # No deeper: there are the programs of peers.
            files = [*BENCH.glob("*"), *BENCH.glob("*/*")]
            files = [path for path in files if path.is_file() and os.access(path, os.X_OK)]
            scripts = [path for path in files if path.read_bytes().startswith(b"#!")]
            self.assertIn(BENCH / "proxy" / "run", scripts)
            for script in scripts:
                with self.subTest(script=script.relative_to(BENCH)):
                    words = [script, "--help"]
                    output = subprocess.run(words, env={"PATH": folder}, capture_output=True, text=True)
                    self.assertEqual((output.returncode, output.stderr), (0, ""))
                    self.assertIn(script.name, output.stdout)
