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

HELP = "Run a simulated vLLM server, with load and faults on demand. Needs no GPU."
POLL_SECONDS = 0.2  # how often phase and limits are looked at
_LOADS = (*SCENARIOS, "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add = parser.add_argument
    add(
        "--listen-address",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="Address to serve on; port 0: any. Default: %(default)s.",
    )
    add("--model", default="qwen3-8b", help=f"One of {', '.join(MODELS)}. Default: %(default)s.")
    add("--gpu", default="H100-SXM", help=f"One of {', '.join(GPUS)}. Default: %(default)s.")
    add(
        "--physics",
        default="well-behaved",
        choices=PHYSICS,
        metavar="NAME",
        help=f"Step-time law: {', '.join(PHYSICS)}. Default: %(default)s.",
    )
    add(
        "--scenario",
        default="demo",
        choices=_LOADS,
        metavar="NAME",
        help=f"Built-in load: {', '.join(_LOADS)}. Default: %(default)s.",
    )
    add("--seed", type=int, default=1, metavar="N", help="Seed of every random draw. Default: %(default)s.")
    add("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs per engine. Default: %(default)s.")
    add("--data-parallel", type=int, default=1, metavar="N", help="Engines on one page. Default: %(default)s.")
    add("--speculative", metavar="K:P", help="Draft K tokens a step, each accepted with probability P.")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="Most requests at once. Default: %(default)s.")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="Most tokens in a step, prompt chunks included. Default: %(default)s.",
    )
    add("--weight-bytes", type=float, metavar="BYTES", help="Replace the model's own.")
    add("--kv-bytes-per-token", type=float, metavar="BYTES", help="Replace the model's own.")
    add("--num-gpu-blocks", type=int, metavar="N", help="KV blocks per engine. Default: what fits in GPU memory.")
    add("--mfu-metrics", action="store_true", help="Let the estimated FLOPs and bytes move.")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Fault from the start on: throttle, noisy_neighbour (factors), frozen_gauges, hang (true), lost_blocks "
        "(share), sleep (level). At run time POST them as JSON to /sim/faults, restart (seconds down) too.",
    )
    add("--max-seconds", type=float, metavar="S", help="End by itself after so long. Default: never.")


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
