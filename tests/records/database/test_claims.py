"""Among all who have a database open, one at a time holds a claim, and the dead hold none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from records import RecordStore, open_store
from records.database.claims import claim_key, claimed
from tests.records.strategies import make_environment

ROOT = Path(__file__).parents[3]
ENVIRONMENT = make_environment()
KEY = claim_key("something", target="cpu", environment=ENVIRONMENT)
OTHER = claim_key("something else", target="cpu", environment=ENVIRONMENT)

HOLD = """
import sys
from records import open_store
store = open_store(sys.argv[1])
print(store.claims.take(sys.argv[2]), flush=True)
sys.stdin.read()
"""


def test_one_store_at_a_time_holds_a_claim(store: RecordStore, url: str) -> None:
    with open_store(url) as other:
        assert store.claims.take(KEY)
        assert not store.claims.take(KEY)
        assert not other.claims.take(KEY)
        assert other.claims.take(OTHER)
        store.claims.give_back(KEY)
        assert other.claims.take(KEY)
    assert store.claims.take(KEY)  # the other was closed
    assert store.claims.take(OTHER)


def test_a_killed_holder_blocks_nobody(store: RecordStore, url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, url, KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert not store.claims.take(KEY)
        with claimed(store.claims, KEY, patience_s=0.0):  # it hangs: the body runs all the same
            pass
        assert not store.claims.take(KEY)
        holder.send_signal(signal.SIGKILL)
    with claimed(store.claims, KEY, patience_s=60.0):
        assert not store.claims.take(KEY)
    assert store.claims.take(KEY)


def test_claims_leave_no_files(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "records.db")) as store, claimed(store.claims, KEY):
        store.claims.take(OTHER)
        assert len(os.listdir(tmp_path / "records.db-claims")) == 2
    assert os.listdir(tmp_path) == ["records.db"]


def test_without_locks_every_claim_is_granted(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "records.db")) as store:
        (tmp_path / "records.db-claims").write_text("no folder")
        assert store.claims.take(KEY)
        store.claims.give_back(KEY)
