"""Calls in other processes: results, crashes, hangs."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tempo.testing.workers import Lost, calls


def work(task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == 5:
        os._exit(7)
    return 10 * task


def sleep(task: int) -> int:
    time.sleep(60 if task == 1 else 0)
    return task


def test_a_call_that_crashes_is_lost_and_the_others_are_not() -> None:
    found = dict(calls(work, range(8), jobs=2, seconds=60))
    lost = {3: Lost("its process died (SIGSEGV)"), 5: Lost("its process died (exit code 7)")}
    assert found == {n: lost.get(n, 10 * n) for n in range(8)}


def test_a_call_that_takes_too_long_is_lost_and_says_where_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    assert dict(calls(sleep, range(3), jobs=1, seconds=5)) == {0: 0, 1: Lost("it took more than 5 seconds"), 2: 2}
    assert " in sleep" in capfd.readouterr().err


def test_no_tasks() -> None:
    assert list(calls(work, [], jobs=2, seconds=60)) == []


def environment(name: str) -> str | None:
    return os.environ.get(name)


def test_settings_are_environment_variables_that_are_not_set_otherwise() -> None:
    settings = {"TEMPO_TEST_SETTING": "1", "PATH": "nowhere"}
    found = dict(calls(environment, list(settings), jobs=1, seconds=60, settings=settings))
    assert found == {"TEMPO_TEST_SETTING": "1", "PATH": os.environ["PATH"]}
