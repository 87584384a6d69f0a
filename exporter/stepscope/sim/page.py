"""The /metrics page, line for line as vLLM 0.32.0 lays it out. The template is a recorded page without its values.

Parsing the template once leaves a list of ready-made line starts and a way to find each value; rendering only joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

from stepscope.sim.counters import Counters, Histogram
from stepscope.sim.presets import EngineConfig

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"]*)"')
_HANDLER = "/v1/completions"
HIGHR_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)  # prometheus-fastapi-instrumentator, as recorded
LOWR_BOUNDS = (0.1, 0.5, 1.0)


@dataclass(slots=True)
class HttpCounters:
    """What the HTTP layer counts of POST /v1/completions; a scenario's requests do not pass through it."""

    requests: int = 0
    request_bytes: int = 0
    highr: Histogram = field(default_factory=lambda: Histogram(HIGHR_BOUNDS))
    lowr: Histogram = field(default_factory=lambda: Histogram(LOWR_BOUNDS))

    def book(self, request_bytes: int, seconds: float) -> None:
        """One request answered."""
        self.requests += 1
        self.request_bytes += request_bytes
        self.highr.observe(seconds)
        self.lowr.observe(seconds)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a page is rendered from."""

    engines: Sequence[Counters]
    http: HttpCounters
    start_epoch_seconds: float
    up_seconds: float


_Value = Callable[[_Facts], float]


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    start: str  # the line up to the value
    value: _Value


@dataclass(frozen=True, slots=True)
class _Family:
    """One HELP and TYPE pair with its samples; `main` is the name that it shares with its `_created` twin."""

    head: str
    samples: tuple[_Sample, ...]
    main: str


class Page:
    """Renders pages of one deployment."""

    def __init__(self, config: EngineConfig) -> None:
        """Reads the template that ships with the package."""
        self._families = _parse(_template(), config)
        self._filtered = lru_cache(maxsize=8)(self._restricted)

    def render(
        self,
        engines: Sequence[Counters],
        http: HttpCounters,
        start_epoch_seconds: float,
        up_seconds: float,
        names: frozenset[str] | None = None,
    ) -> str:
        """The page's text; with `names` only the samples so called, as prometheus_client's restricted registry does."""
        facts = _Facts(engines, http, start_epoch_seconds, up_seconds)
        parts = []
        for family in self._families if names is None else self._filtered(names):
            parts.append(family.head)
            parts += [f"{sample.start} {go_float(sample.value(facts))}\n" for sample in family.samples]
        return "".join(parts)

    def _restricted(self, names: frozenset[str]) -> tuple[_Family, ...]:
        kept = []
        for family in self._families:
            samples = tuple(sample for sample in family.samples if sample.name in names)
            if samples or (family.main in self._mains_of_created(names) and not family.head.count("_created ")):
                kept.append(_Family(family.head, samples, family.main))
        return tuple(kept)

    def _mains_of_created(self, names: frozenset[str]) -> set[str]:
        """Families of which a `_created` sample is wanted: their own HELP and TYPE lines are written even if empty."""
        return {f.main for f in self._families for s in f.samples if s.name in names and s.name.endswith("_created")}


def go_float(value: float) -> str:
    """A number as prometheus_client writes it: Go's exponent form from 10^6 on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


def _template() -> list[str]:
    return resources.files("stepscope.sim").joinpath("page_template.txt").read_text("utf-8").splitlines()


def _parse(lines: list[str], config: EngineConfig) -> tuple[_Family, ...]:
    families = []
    head: list[str] = []
    body: list[str] = []
    for line in [*lines, "# HELP end"]:
        if line.startswith("# HELP") and head:
            families.append(_family(head, body, config))
            head, body = [], []
        (head if line.startswith("#") else body).append(line)
    if not config.draft_tokens:
        families = [family for family in families if not family.main.startswith("vllm:spec_decode")]
    return tuple(families)


def _family(head: list[str], body: list[str], config: EngineConfig) -> _Family:
    name = head[0].split(" ", 3)[2]
    lines = [line for block in _per_engine(body, config) for line in block]
    samples = tuple(_sample(line, engine) for engine, line in lines)
    return _Family("\n".join(head) + "\n", samples, name.removesuffix("_created").removesuffix("_total"))


def _per_engine(body: list[str], config: EngineConfig) -> list[list[tuple[int, str]]]:
    """Lines with their engine, filled in: a family lists all its series of engine 0, then those of engine 1 ..."""
    blocks = []
    for engine in range(config.data_parallel if any("@ENGINE@" in line for line in body) else 1):
        block = []
        for line in body:
            for position in range(config.draft_tokens) if "@POSITION@" in line else (0,):
                text = line.replace("@POSITION@", str(position))
                for key, value in _fills(config, engine).items():
                    text = text.replace(f"@{key}@", value)
                block.append((engine, text))
        blocks.append(block)
    return blocks


def _fills(config: EngineConfig, engine: int) -> dict[str, str]:
    """Under data parallelism vLLM publishes blocks summed over the engines, and capacity tokens per engine."""
    model = config.model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return {
        "ENGINE": str(engine),
        "MODEL": model,
        "BLOCK_SIZE": str(config.block_size),
        "GPU_MEMORY_UTILIZATION": str(config.gpu_memory_utilization),
        "KV_BYTES": "None",
        "KV_TOKENS": str(config.capacity_tokens),
        "MAX_CONCURRENCY": str(config.capacity_tokens / config.max_model_len),
        "NUM_GPU_BLOCKS": str(config.num_gpu_blocks * config.data_parallel),
        "PREFIX_CACHING": str(config.prefix_caching),
    }


def _sample(line: str, engine: int) -> _Sample:
    match = _SAMPLE.match(line)
    if match is None:
        raise ValueError(f"page template: not a sample: {line[:80]!r}")
    name, labels = match[1], dict(_LABEL.findall(match[2] or ""))
    return _Sample(name, line, _value(name, labels, engine))


def _value(name: str, labels: dict[str, str], engine: int) -> _Value:
    if name.endswith("_created"):
        return lambda facts: facts.start_epoch_seconds
    if name in _PROCESS:
        return _PROCESS[name]
    if name.startswith("http_"):
        return _http_value(name, labels)
    if not name.startswith("vllm:") or name == "vllm:cache_config_info":
        return _constant(1.0 if name.endswith("_info") else 0.0)
    attribute = name.removeprefix("vllm:")
    for suffix in ("_bucket", "_count", "_sum"):
        if attribute.endswith(suffix):
            return _histogram_value(_engine_histogram(engine, attribute.removesuffix(suffix)), suffix, labels)
    extra = [value for key, value in labels.items() if key not in ("engine", "model_name")]
    if extra and attribute != "admission_rejections_total":
        return lambda facts: getattr(facts.engines[engine], attribute).get(extra[0], 0)
    return lambda facts: getattr(facts.engines[engine], attribute, 0)


def _constant(value: float) -> _Value:
    return lambda _: value


def _engine_histogram(engine: int, attribute: str) -> Callable[[_Facts], Histogram]:
    def pick(facts: _Facts) -> Histogram:
        histogram: Histogram = getattr(facts.engines[engine], attribute)
        return histogram

    return pick


def _http_value(name: str, labels: dict[str, str]) -> _Value:
    for base, pick in _HTTP_HISTOGRAMS.items():
        if name.startswith(base + "_") and name[len(base) :] in ("_bucket", "_count", "_sum"):
            return _histogram_value(pick, name[len(base) :], labels)
    if name == "http_request_size_bytes_sum":
        return lambda facts: facts.http.request_bytes
    if name == "http_response_size_bytes_sum":  # streamed answers have no Content-Length: 0 on a real page too
        return _constant(0.0)
    return lambda facts: facts.http.requests


def _histogram_value(pick: Callable[[_Facts], Histogram], suffix: str, labels: dict[str, str]) -> _Value:
    if suffix == "_count":
        return lambda facts: pick(facts).count
    if suffix == "_sum":
        return lambda facts: pick(facts).sum
    bound = float(labels["le"])

    def below(facts: _Facts) -> float:
        histogram = pick(facts)
        upto = len(histogram.counts) if bound == float("inf") else histogram.bounds.index(bound) + 1
        return sum(histogram.counts[:upto])

    return below


_PROCESS: dict[str, _Value] = {
    "process_start_time_seconds": lambda facts: facts.start_epoch_seconds,
    "process_cpu_seconds_total": lambda facts: facts.up_seconds,  # vLLM keeps about one core busy
    "process_virtual_memory_bytes": lambda _: 8e9,  # stand-ins: the simulator has no such process
    "process_resident_memory_bytes": lambda _: 2e9,
    "process_open_fds": lambda _: 60.0,
    "process_max_fds": lambda _: 1048576.0,
}
_HTTP_HISTOGRAMS: dict[str, Callable[[_Facts], Histogram]] = {
    "http_request_duration_highr_seconds": lambda facts: facts.http.highr,
    "http_request_duration_seconds": lambda facts: facts.http.lowr,
}
