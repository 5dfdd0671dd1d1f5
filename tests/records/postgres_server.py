"""A PostgreSQL server of one's own: from the installed binaries, in a temporary folder, on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

USER = "tessel"


def find_binaries() -> Path | None:
    """Return the folder that holds `initdb` and `pg_ctl`; the newest version where there are several."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


class PostgresServer:
    """A running server; data are not flushed to disk, since no test cuts the power."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        # PostgreSQL refuses to run as root: there, the folder and the server are given to `nobody`.
        self._user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="tessel-postgres-", dir="/tmp"))
        if self._user:
            shutil.chown(self.folder, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        try:
            self._call("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
            self.start()
        except BaseException:  # such as SystemExit: nobody has the server yet, who could remove it
            self.remove()
            raise

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -F"
        self._call(
            "pg_ctl", "-D", str(self._data), "-w", "-o", options, "-l", str(self.folder / "log"), "start"
        )

    def stop(self, mode: str = "fast") -> None:
        self._call("pg_ctl", "-D", str(self._data), "-w", "-m", mode, "stop")

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it does not run, or never did
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments],
            check=True,
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
        )
