"""What is published after a sample: immutable, swapped in at once, read by everybody who asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.leases import AdmissionCounts
from stepscope.core.step_model import StepLaw, StepTime
from stepscope.metrics import CAUSES, OUTCOMES, STATES


@dataclass(frozen=True, slots=True)
class Accounts:
    """Counters of one engine, since stepscope first saw it. Seconds and counts; they never fall."""

    itl_observed_seconds: float = 0.0
    itl_expected_seconds: float = 0.0
    itl_compared: float = 0.0
    judged_seconds: float = 0.0
    over_budget_seconds: float = 0.0
    state_seconds: tuple[float, ...] = (0.0,) * len(STATES)
    cause_seconds: tuple[float, ...] = (0.0,) * len(CAUSES)
    restarts: int = 0
    invalid_values: tuple[tuple[str, int], ...] = ()  # (one of metrics.FIELDS, values dropped)


@dataclass(frozen=True, slots=True)
class EngineView:
    """All that can be said of one engine after its last sample. None means: absent from the page."""

    model_name: str
    engine: str
    at_seconds: float  # monotonic clock
    state: str
    accounts: Accounts
    cause: str | None = None
    kv_usage_ratio: float | None = None
    capacity_tokens: float | None = None
    capacity_source: str | None = None
    requests_decoding: float | None = None
    requests_prefilling: float | None = None
    requests_waiting: float | None = None
    tokens_in_flight: float | None = None
    tokens_per_sequence: float | None = None
    shared_prefix_tokens: float | None = None  # read besides those in flight, as far as one can tell; None: hardly any
    decode_batch_size: float | None = None
    prefill_tokens_per_step: float | None = None
    tokens_per_step: float | None = None
    itl_mean_seconds: float | None = None
    itl_median_seconds: float | None = None
    itl_median_lower_bound_seconds: float | None = None
    itl_median_upper_bound_seconds: float | None = None
    prediction_in_median_bucket: bool | None = None
    ttft_mean_seconds: float | None = None
    measured_step_seconds: float | None = None
    predicted: StepTime | None = None
    prefill_known: bool = True  # False: prompt tokens were computed and their cost is not known
    drift_ratio: float | None = None
    prefill_interference_ratio: float | None = None
    target_step_seconds: float | None = None
    target_itl_seconds: float | None = None
    target_ttft_seconds: float | None = None
    speed_budget_tokens: float | None = None
    memory_budget_tokens: float | None = None
    observations: float = 0.0  # in the window

    @property
    def predicted_itl_seconds(self) -> float | None:
        """Predicted inter-token latency; None where its prefill part cannot be known."""
        return self.predicted.itl_seconds if self.predicted is not None and self.prefill_known else None

    @property
    def token_headroom_tokens(self) -> float | None:
        """The smallest budget minus tokens in flight; negative when over."""
        budgets = [b for b in (self.speed_budget_tokens, self.memory_budget_tokens) if b is not None]
        return min(budgets) - self.tokens_in_flight if budgets and self.tokens_in_flight is not None else None


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the predictions rest on, for the info series, `/config`, `check` and the landing page."""

    law: StepLaw | None = None
    calibration_mismatch: bool | None = None
    model_labels: tuple[tuple[str, str], ...] = ()
    hardware_labels: tuple[tuple[str, str], ...] = ()
    peak_bandwidth_bytes_per_second: float | None = None  # all GPUs
    assumptions: tuple[str, ...] = ()  # what was guessed, one sentence each
    law_in_tokens: bool = False  # learned without a model: tokens stand for bytes
    baseline_residual_ratio: float | None = None  # of the law learned online, whether or not it is in use
    law_assumptions: tuple[str, ...] = ()  # those of them that a learned law makes void
    missing: tuple[str, ...] = ()  # what is missing, and the flag that supplies it


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """Token admission at one moment; rejected: requests turned away unjudged, in the order of REJECTIONS."""

    counts: AdmissionCounts
    rejected: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the sidecar at one moment."""

    version: str
    revision: str
    python_version: str
    config_ok: bool = True
    config_errors: tuple[str, ...] = ()
    engine_up: bool = False
    engine_ever_up: bool = False
    scrapes: tuple[int, ...] = (0,) * len(OUTCOMES)
    scrape_duration_seconds: float | None = None
    last_sample_unix_seconds: float | None = None
    last_error: str | None = None
    engines: tuple[EngineView, ...] = ()
    assumed: Assumed = field(default=Assumed())
    engine_version: str | None = None
    notes: tuple[str, ...] = ()
    admission: AdmissionView | None = None  # filled in when metrics are asked for; None: not enabled
