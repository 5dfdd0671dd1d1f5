"""Kill writers of records 200 times each, and write down what came of it as a table.

    python -m benchmarks.records_faults

runs the slow tests of tests/records/database/test_faults.py, each of which kills a process 200 times while it
appends, upgrades, imports, merges or prunes, and compares what is stored with what was acknowledged.
"""

from __future__ import annotations

import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = "tests/records/database/test_faults.py"


def main() -> int:
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", TESTS, f"--junit-xml={report}"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        cases = list(ElementTree.parse(report).iter("testcase"))
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    print(f"\n{system}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    print(f"{time.time() - started:.0f} s\n\n| test | outcome | seconds |\n|---|---|---|")
    for case in cases:
        outcome = "failed" if case.find("failure") is not None else "passed"
        print(f"| {case.get('name')} | {outcome} | {float(case.get('time', 0)):.0f} |")
    return status


if __name__ == "__main__":
    sys.exit(main())
