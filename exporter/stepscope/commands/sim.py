"""`stepscope sim`: a vLLM-shaped server without a GPU, with load and faults on demand."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from types import FrameType

from stepscope.errors import ConfigError
from stepscope.sim.build import PHYSICS, build_config, parse_speculative
from stepscope.sim.presets import GPUS, MODELS
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.server import SimServer

HELP = "run a simulated vLLM server (no GPU), with load and faults on demand"
POLL_SECONDS = 0.2  # how often phase and limits are looked at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add = parser.add_argument
    add("--listen-address", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s; port 0: any")
    add("--model", default="qwen3-8b", help=f"one of {', '.join(MODELS)}; default: %(default)s")
    add("--gpu", default="H100-SXM", help=f"one of {', '.join(GPUS)}; default: %(default)s")
    add("--physics", default="well-behaved", choices=PHYSICS, help="step-time law; default: %(default)s")
    add("--scenario", default="demo", choices=(*SCENARIOS, "none"), help="built-in load; default: %(default)s")
    add("--seed", type=int, default=1, help="of every random draw; default: %(default)s")
    add("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs per engine; default: %(default)s")
    add("--data-parallel", type=int, default=1, metavar="N", help="engines on one page; default: %(default)s")
    add("--speculative", metavar="K:P", help="K drafted tokens a step, each accepted with probability P")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="default: %(default)s")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="token budget of a step; default: %(default)s",
    )
    add("--weight-bytes", type=float, metavar="BYTES", help="replaces the model's")
    add("--kv-bytes-per-token", type=float, metavar="BYTES", help="replaces the model's")
    add("--num-gpu-blocks", type=int, metavar="N", help="KV blocks per engine; default: what fits in GPU memory")
    add("--mfu-metrics", action="store_true", help="let the estimated FLOPs and bytes move")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="from the start on: throttle, noisy_neighbour (factors), frozen_gauges, hang (true), lost_blocks (share), "
        "sleep (level); at run time POST them as JSON to /sim/faults, restart (seconds down) too",
    )
    add("--max-seconds", type=float, metavar="S", help="end by itself after so long")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or the time limit; 0. ConfigError for bad flags or a taken port."""
    drafts, acceptance = parse_speculative(args.speculative) if args.speculative else (0, 0.0)
    config = build_config(
        args.model,
        args.gpu,
        args.physics,
        tensor_parallel=args.tensor_parallel,
        data_parallel=args.data_parallel,
        draft_tokens=drafts,
        draft_acceptance=acceptance,
        weight_bytes=args.weight_bytes,
        kv_bytes_per_token=args.kv_bytes_per_token,
        num_gpu_blocks=args.num_gpu_blocks,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        mfu_metrics=args.mfu_metrics,
    )
    faults = _parse_faults(args.fault)
    server = SimServer(config, args.listen_address, SCENARIOS.get(args.scenario), args.seed)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.start()
        if faults:
            server.change_faults(faults)
        _watch(server, stop, args.max_seconds)
    finally:
        server.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def _watch(server: SimServer, stop: threading.Event, max_seconds: float | None) -> None:
    """Print the URL and every change of phase until told to stop."""
    print(f"simulated vLLM on {server.url}  (metrics: {server.url}/metrics)", flush=True)
    began, shown = time.monotonic(), ""
    while not stop.wait(POLL_SECONDS):
        elapsed = time.monotonic() - began
        if max_seconds is not None and elapsed >= max_seconds:
            return
        if (phase := server.phase) != shown:
            shown = phase
            print(f"{elapsed:7.1f} s  {phase}", flush=True)


def _parse_faults(items: list[str]) -> dict[str, object]:
    faults: dict[str, object] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"sim: --fault must be NAME=VALUE, not {item!r}")
        faults[name.strip().replace("-", "_")] = value.strip()
    return faults
