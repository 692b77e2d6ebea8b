"""Processes of a deployment: none is left at its end."""

import subprocess
import sys

import pytest
from processes import Processes

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_process_that_another_started_meanwhile_is_ended_as_well(
    tmp_path, monkeypatch
):
    processes, late = Processes(tmp_path), list[subprocess.Popen[bytes]]()
    environment = processes._environment
    helper = subprocess.Popen(_SLEEP, env=environment, start_new_session=True)
    find = processes.left

    def found_too_early():
        found = find()
        if not late:
            late.append(
                subprocess.Popen(_SLEEP, env=environment, start_new_session=True)
            )
        return found

    monkeypatch.setattr(processes, "left", found_too_early)
    with processes:
        pass
    assert find() == []
    assert [process.wait(10) for process in (helper, *late)] == [-9, -9]
