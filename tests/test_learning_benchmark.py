"""The learning benchmark: one run of it, and what its report says."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytestmark = pytest.mark.usefixtures("benchmarks_importable")


def test_a_run_learns_and_judges_what_it_did_not_learn_from() -> None:
    """A 14B model on two L4: slow steps, few of them to simulate."""
    from alert_quality_cases import MACHINES
    from learning import play

    machine = next(at for at, one in enumerate(MACHINES) if one.gpu == "L4")
    run = play((machine, 0, 1))
    assert run.learned_seconds is not None
    assert 0 < len(run.judged_errors) <= len(run.errors) <= 180
    assert run.meets(run.judged_errors)
    assert min(run.frozen_cpu_seconds, run.learning_cpu_seconds) > 0.0


def test_the_report_counts_targets_and_lists_what_misses_them() -> None:
    """Of three runs one is off, and one never learned."""
    from learning import Run, summary

    good = Run("good", 700.0, (0.02, 0.03, 0.1), (0.02, 0.03), 5e-5, 1e-5)
    bad = replace(good, label="bad", learned_seconds=1000.0, judged_errors=(0.06, 0.07))
    never = Run("never", None, (), (), 9e-5, 0.0)
    report = summary([good, bad, never], details=False)
    assert "3 runs; learned within 15 minutes: 1, later: 1, within 30 never: 1" in report
    assert "both targets met in 1 of 2" in report
    assert "0.050 ms while learning" in report
    assert "  bad: learned after 1000 s; judged 6.5% / 6.9%" in report
    assert "  good" not in report
    assert "  good" in summary([good, bad, never], details=True)
