"""The whole `/metrics` page of one fixed snapshot, kept as a file and checked as Prometheus sees it.

`.venv/bin/python tests/golden_snapshot.py` writes the file anew after an intended change.
"""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from golden_snapshot import GOLDEN, golden_snapshot, page_of
from stepscope.metrics import BY_NAME, PREFIX, TABLE
from tools import require_tool

# Its name says what it is; promtool knows the ending as that of a histogram's samples only.
_KNOWN_COMPLAINTS = {
    'stepscope_prediction_in_median_bucket non-histogram metrics should not have "_bucket" suffix',
}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def test_the_page_is_the_golden_one() -> None:
    """Names, types, help, labels and values of a real engine's pages; a change here is a change for every user."""
    assert page_of(golden_snapshot()) == GOLDEN.read_text()


def test_promtool_has_nothing_new_to_say() -> None:
    """Units, suffixes, help texts and label names by Prometheus's own linter."""
    promtool = require_tool("promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=GOLDEN.read_text(), capture_output=True, text=True)
    assert set(done.stderr.splitlines()) <= _KNOWN_COMPLAINTS


def test_the_page_holds_nothing_that_is_not_ours() -> None:
    """No series of the engine, no `_created`, no timestamp, nothing of Python or the process."""
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("#"):
            continue
        assert line.startswith(PREFIX), line
        assert "_created" not in line
        assert len(line[line.rfind("}") + 1 :].split()) in (1, 2)
        assert line.count(" ") == 1 or "}" in line
        assert not line.endswith(("NaN", "Inf")), line
    samples = [s for family in parse_text(GOLDEN.read_text()) for s in family.samples]
    assert all(sample.timestamp is None for sample in samples)


def test_every_series_is_one_of_the_table_with_its_type_and_labels() -> None:
    """In the table's order, each family once."""
    families = list(parse_text(GOLDEN.read_text()))
    known = {metric.full_name: metric for metric in TABLE}
    seen = []
    for family in families:
        for sample in family.samples:
            metric = known[sample.name]
            assert set(sample.labels) == set(metric.label_names), sample.name
            assert family.type == metric.kind
            assert family.documentation == metric.help
            if metric.values:
                assert sample.labels[metric.labels[0]] in metric.values
        seen.append(family.samples[0].name)
    assert seen == [metric.full_name for metric in TABLE if metric.full_name in seen]


def test_every_metric_of_the_table_is_on_the_page() -> None:
    """While an engine is measured with an objective, a calibration and all facts, nothing is missing."""
    page = GOLDEN.read_text()
    missing = {name for name in BY_NAME if f"\n{PREFIX}{name}{{" not in page and f"\n{PREFIX}{name} " not in page}
    # Leases are another matter: their series are there when admission is enabled.
    assert {name for name in missing if not name.startswith("admission_")} == set()


def test_an_engine_has_at_most_120_series() -> None:
    """So that hundreds of them are no burden."""
    samples = [s for family in parse_text(GOLDEN.read_text()) for s in family.samples if "engine" in s.labels]
    assert 60 < len(samples) <= 120


def test_the_openmetrics_form_says_the_same() -> None:
    """It parses with the strict parser, and every value is that of the text form."""
    page = page_of(golden_snapshot(), accept=OPENMETRICS)
    assert page.endswith("# EOF\n")
    strict = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_openmetrics(page) for s in f.samples}  # type: ignore[no-untyped-call]  # the library has no types
    text = {
        (s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(GOLDEN.read_text()) for s in f.samples
    }
    assert strict == text


@pytest.mark.parametrize("pages", [1, 3, 30])
def test_other_moments_are_clean_too(pages: int) -> None:
    """The first sample, warming up, the middle of a long prefill: no NaN, no infinity where none belongs."""
    for line in page_of(golden_snapshot(pages)).splitlines():
        if not line.startswith("#"):
            assert "nan" not in line.lower()
            assert not line.endswith("Inf") or "upper_bound" in line
