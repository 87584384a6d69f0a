"""What is kept of one engine between two samples, and how it is to be judged."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.estimate import KvState
from stepscope.core.prefill import PrefillLedger
from stepscope.core.sample import EngineSample
from stepscope.core.sharing import Sharing
from stepscope.core.snapshot import Accounts
from stepscope.core.trailing import Trailing
from stepscope.core.window import Pair


@dataclass(frozen=True, slots=True)
class Policy:
    """How to judge: times in seconds, the promise in tokens per second and user."""

    interval_seconds: float = 5.0
    window_seconds: float = 30.0
    warm_up_seconds: float = 60.0
    objective_tokens_per_second: float | None = None
    headroom: float = 0.9
    objective_ttft_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept of one engine between samples."""

    sample: EngineSample
    at_seconds: float
    tokens_in_flight: float | None
    life_start_seconds: float
    process_start_seconds: float | None = None
    observations_in_life: float = 0.0
    pairs: tuple[Pair, ...] = ()
    ledger: PrefillLedger = PrefillLedger()
    decoding: float | None = None  # the last known mean number of decoding requests
    unmoved_samples: int = 0
    moved_at_seconds: float = 0.0
    requeued: bool = False  # requests were preempted, and since then somebody has always waited
    still_samples: int = 0  # in a row at which the gauges stood still although tokens were generated
    still_blocks: float = 0.0  # KV blocks that each request filled in the meantime
    usual_step: Trailing = Trailing()
    usual_tokens_per_sequence: Trailing = Trailing()
    positions_per_sequence: float = 1.0  # the last known, under speculative decoding
    tokens_per_step: float = 1.0  # likewise
    sharing: Sharing = Sharing()
    accounts: Accounts = Accounts()


@dataclass(frozen=True, slots=True)
class Step:
    """One engine half way through a sample: differenced and predicted, not yet judged."""

    memory: Memory
    kv: KvState
    pair: Pair | None
    has_pair_time: bool
