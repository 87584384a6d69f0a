"""The scan reads wanted samples as the library's parser would, and nothing else costs anything."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from recorded_pages import whole_page
from stepscope.core.exposition import RawSample, looks_like_metrics, parse_labels, scan
from stepscope.engines.vllm import WANTED
from stepscope.errors import NotMetricsError

NASTY = [
    'escaped "quotes" inside',
    "back\\slash at the end\\",
    "braces } and { and }}",
    'a fake sample\nx{a="1"} 99\nand on',
    'vllm:x{engine="0"} 5',
    " # {trace_id=1} 0.5",
    "comma, equals= and , more",
    "line\u2028separator, next line \x85, form feed \x0c, return \r",
    "tab\tand  blanks ",
    "",
    "日本語 ✓",
]


class Pages(Collector):
    """Hands fixed metrics to the library's renderer."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics


def rendered(*samples: tuple[str, dict[str, str], float]) -> str:
    """A page as the library writes it, one family a sample."""
    metrics = []
    for name, labels, value in samples:
        metric = Metric(name, "help with { and }", "gauge")
        metric.add_sample(name, labels, value)
        metrics.append(metric)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Pages(metrics))
    return generate_latest(registry).decode()


def values(text: str, *wanted: str) -> list[tuple[str, float | None]]:
    return [(name, value) for name, _, value in scan(text, frozenset(wanted))]


def test_only_wanted_names_are_yielded_in_page_order() -> None:
    """Names that merely begin with a wanted one are others."""
    text = 'x{a="1"} 1\nxy{a="1"} 2\n# TYPE x gauge\nz 3\nx{a="2"} 4\n'
    assert list(scan(text, {"x", "z"})) == [
        RawSample("x", 'x{a="1"}', 1.0),
        RawSample("z", "z", 3.0),
        RawSample("x", 'x{a="2"}', 4.0),
    ]


@pytest.mark.parametrize("nasty", NASTY)
def test_label_values_cannot_break_the_scan(nasty: str) -> None:
    """Quotes, braces, commas, comment signs and whole fake samples inside a label value change no other value."""
    text = rendered(("before", {"a": "1"}, 1.0), ("x", {"l": nasty, "other": "o"}, 2.5), ("after", {"a": "1"}, 3.0))
    found = list(scan(text, {"before", "x", "after"}))
    assert [(s.name, s.value) for s in found] == [("before", 1.0), ("x", 2.5), ("after", 3.0)]
    assert parse_labels(found[1].series) == {"l": nasty, "other": "o"}


@pytest.mark.parametrize("nasty", NASTY)
def test_a_foreign_label_value_changes_nothing(nasty: str) -> None:
    """Even one that holds what looks like a wanted sample."""
    text = rendered(("foreign", {"l": nasty + '\nvllm:x{engine="0"} 7\n'}, 2.5), ("vllm:x", {"engine": "0"}, 3.0))
    assert values(text, "vllm:x") == [("vllm:x", 3.0)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_label_value_survives_the_library_s_renderer(value: str) -> None:
    """What the engine's library writes is what comes out."""
    (found,) = scan(rendered(("x", {"l": value, "m": "n"}, 1.0)), {"x"})
    assert parse_labels(found.series) == {"l": value, "m": "n"}


_names = st.sampled_from(["vllm:a", "vllm:b_total", "x", "y_sum", "y_bucket", "z"])
_labels = st.dictionaries(
    st.sampled_from(["le", "engine", "model_name", "q"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
_floats = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-300, 17.0]))


@given(st.lists(st.tuples(_names, _labels, _floats), max_size=12), st.frozensets(_names, min_size=1))
def test_the_scan_equals_the_library_s_parser(
    samples: list[tuple[str, dict[str, str], float]], wanted: frozenset[str]
) -> None:
    """On random pages, for the wanted names: same samples, labels and values, in the same order."""
    text = rendered(*samples) + "# EOF\n"
    expected = [
        (s.name, s.labels, repr(s.value))
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name in wanted
    ]
    found = [(s.name, parse_labels(s.series), repr(s.value)) for s in scan(text, wanted)]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_a_recorded_page_reads_as_the_library_reads_it() -> None:
    """Every wanted sample of a real page, none more."""
    expected = [
        (s.name, s.labels, s.value)
        for family in text_string_to_metric_families(whole_page())
        for s in family.samples
        if s.name in WANTED
    ]
    found = [(s.name, parse_labels(s.series), s.value) for s in scan(whole_page(), WANTED)]
    assert len(found) > 40
    assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('x{a="1"} 5', 5.0),
        ('x{a="1"} 5 1700000000000', 5.0),
        ('x{a="1"}\t5  -1', 5.0),
        ('x{a="1",} 5', 5.0),
        ("x 5", 5.0),
        ("x 5 1700000000000", 5.0),
        ('x{a="1"} +Inf', math.inf),
        ('x{a="1"} -Inf', -math.inf),
        ('x{a="1"} 1.5e-3', 0.0015),
        ('x{le="0.1"} 5 # {trace_id="abc"} 0.07', 5.0),
        ('x{le="0.1"} 5 1.7e9 # {trace_id="a}b # {"} 0.07 1.7e9', 5.0),
    ],
)
def test_legal_forms_of_a_sample_are_read(line: str, value: float) -> None:
    """Timestamps, exemplars, blanks, a trailing comma, infinities."""
    (found,) = scan(line + "\n", {"x"})
    assert found.value == value
    assert parse_labels(found.series) is not None


def test_a_nan_is_a_value() -> None:
    """Whether it is valid is for the engine's row to say."""
    ((_, value),) = values('x{a="1"} NaN\n', "x")
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    "line",
    ['x{a="1"}', 'x{a="1"} ', 'x{a="1"} five', 'x{a="1"} 1_000', 'x{a="1"} 1 2 3', 'x{a="1" 5', "x", "x five"],
)
def test_a_broken_wanted_line_is_yielded_without_a_value(line: str) -> None:
    """So that it can be counted; the lines around it stand."""
    text = f'w{{a="1"}} 1\n{line}\ny{{a="1"}} 2\n'
    assert values(text, "w", "x", "y") == [("w", 1.0), ("x", None), ("y", 2.0)]


@pytest.mark.parametrize(
    "series", ['x{a="1"', "x{a=1}", 'x{a="1"b="2"}', 'x{a="unterminated}', 'x{a="1"}}', "x{=}", 'x{a="1\\"}', "x{a}"]
)
def test_broken_labels_are_none(series: str) -> None:
    """Rather than a guess."""
    assert parse_labels(series) is None


@pytest.mark.parametrize(("series", "labels"), [("x", {}), ("x{}", {}), ("x{ }", {}), ('x{ a = "1" }', {"a": "1"})])
def test_labels_may_be_absent_or_spaced(series: str, labels: dict[str, str]) -> None:
    """Both are legal."""
    assert parse_labels(series) == labels


@pytest.mark.parametrize("foreign", ["", "garbage", "y{", 'y{a="', "}{", "y{a=b} c d e", "\x00\x01", "# HELP", "{}"])
def test_broken_foreign_lines_are_ignored(foreign: str) -> None:
    """One bad line of another exporter on the page hides nothing."""
    assert values(f'x{{a="1"}} 1\n{foreign}\nx{{a="2"}} 2\n', "x") == [("x", 1.0), ("x", 2.0)]


def test_windows_line_ends_are_read() -> None:
    """A proxy may have put them there."""
    text = '# TYPE x gauge\r\nx{a="1"} 5\r\ny 6\r\n'
    found = list(scan(text, {"x", "y"}))
    assert [(s.series, s.value) for s in found] == [('x{a="1"}', 5.0), ("y", 6.0)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "empty body"),
        (" \n\n", "empty body"),
        ('x{a="1"} 5', "page is cut: no newline at its end"),
        ('x{a="1"} 5\nx{a="2', "page is cut: no newline at its end"),
        ("<!DOCTYPE html>\n<html>{}</html>\n", "not a Prometheus text page: it begins with '<!DOCTYPE html>"),
        ('{"error": "no"}\n', 'not a Prometheus text page: it begins with \'{"error": "no"}'),
        ("Internal Server Error\n", "not a Prometheus text page: it begins with 'Internal Server Error"),
    ],
)
def test_what_is_no_whole_page_is_refused(body: str, says: str) -> None:
    """Nothing is yielded that a caller would keep: the error comes before the scan can end."""
    with pytest.raises(NotMetricsError, match=re.escape(says)):
        list(scan(body, {"x"}))


def test_a_cut_page_yields_nothing_at_all() -> None:
    """The error comes before the first sample."""
    with pytest.raises(NotMetricsError):
        next(scan('x{a="1"} 5\nx{a="2"} 1', {"x"}))


def test_a_page_of_others_is_a_page() -> None:
    """It yields nothing and is not an error; so is a page of comments alone."""
    assert list(scan('python_info{version="3"} 1.0\n', {"x"})) == []
    assert list(scan("# HELP y z\n", {"x"})) == []
    assert looks_like_metrics("y 1 1700000000000\n")
    assert not looks_like_metrics("hello world\n")


HUGE = {
    "letters": "a" * 20_000_000,
    "escaped quotes": '\\"' * 1_000_000,
    "backslashes": "\\\\" * 1_000_000,
    "fake samples": '\\nx{a=\\"1\\"} 9' * 200_000,
    "signs of exemplars": " # {" * 500_000,
}


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("name", ["x", "foreign"])
def test_a_huge_label_is_read_in_bounded_time(kind: str, name: str) -> None:
    """Megabytes in one label, wanted or not; the samples after it are right."""
    text = f'{name}{{config="{HUGE[kind]}",engine="0"}} 1.0\nx{{engine="1"}} 2.0\n'
    began = time.process_time()
    found = list(scan(text, {"x"}))
    labels = [parse_labels(sample.series) for sample in found]
    assert time.process_time() - began < 5.0
    assert found[-1].value == 2.0
    assert labels[-1] == {"engine": "1"}
    if name == "x":
        assert labels[0] is not None
        assert labels[0]["engine"] == "0"


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_broken_label_is_refused_in_bounded_time(kind: str) -> None:
    """Its quote never closes; a backtracking parser would not come back."""
    began = time.process_time()
    assert parse_labels(f'x{{config="{HUGE[kind]}') is None
    list(scan(f'x{{config="{HUGE[kind]} 1 # {{\n', {"x"}))
    assert time.process_time() - began < 5.0


def test_a_huge_label_needs_little_memory() -> None:
    """A regular expression that may backtrack keeps 80 bytes for each escape: a small container would be killed."""
    code = (
        "import resource; from stepscope.core.exposition import parse_labels;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024;"
        "series = 'x{config=\"' + '\\\\\"' * 5_000_000 + '\"}'; before = peak();"
        "assert len(parse_labels(series)['config']) == 5_000_000; print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 150  # MiB; the label itself has 10


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_garbage_never_crashes_the_scan(seed: int) -> None:
    """Any mixture of the signs that mean something: a value, None, or the one error."""
    draw = random.Random(seed)
    text = "".join(
        draw.choice(["x", "{", "}", '"', "\\", " ", ",", "=", "#", "\n", "1", "a", "# {"]) for _ in range(60)
    )
    try:
        found = list(scan(text + "\n", {"x"}))
    except NotMetricsError:
        return
    for sample in found:
        labels = parse_labels(sample.series)
        assert labels is None or all(isinstance(value, str) for value in labels.values())
