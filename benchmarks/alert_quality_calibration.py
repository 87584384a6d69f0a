"""Calibrates a simulated engine as `stepscope calibrate` would: the product's own probes, readings and fit."""

from __future__ import annotations

from dataclasses import replace

from alert_quality_cases import Machine, config_of, longest_tokens

from stepscope.core.assume import Calibration, Given
from stepscope.core.calibrate import calibration_of
from stepscope.core.defaults import Machine as PriorMachine
from stepscope.core.defaults import default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.engine_span import engine_span
from stepscope.core.estimate import Facts
from stepscope.core.fit import fit
from stepscope.core.law_terms import Point
from stepscope.core.model_spec import ModelSpec
from stepscope.core.probes import MIN_STEPS, MIXED_WAVES, Probe, Room, plan
from stepscope.core.sample import Reading
from stepscope.engines import read
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation

STREAMS = 64  # --streams: as many as these engines serve
READ_SECONDS = 1.0
MEASURE_SECONDS = 10.0
LONGEST_OUTPUT = 8192  # tokens of a stream that is hung up on when it has been measured
MOST_SECONDS = 600.0  # of one probe, prompts included


def calibration(machine: Machine, given: Given, model: ModelSpec, seed: int) -> Calibration:
    """What the file would hold. Raises RuntimeError when a probe gives nothing."""
    config = config_of(machine)
    room = Room(config.max_model_len, float(config.capacity_tokens))
    probes = plan(room, streams=STREAMS, long=longest_tokens(config))  # --long-tokens: the longest session they serve
    points = [_measured(machine, probe, model, seed + number) for number, probe in enumerate(probes)]
    peer = PriorMachine(
        "vllm", machine.gpu, machine.tensor_parallel, given.bandwidth or 0.0, given.flops, model.active_params,
        layers=float(model.layers) if model.layers else None,
    )  # fmt: skip
    found = fit(points, default_prior(find_row(TABLE, peer), peer), model.weights if model.weights.experts else None)
    made = calibration_of(
        found, points, given, model, engine_version=None, noise_ratio=None, date="simulated", stepscope_version=""
    )
    return replace(made, identity="simulated")


def _measured(machine: Machine, probe: Probe, model: ModelSpec, seed: int) -> Point:
    """A decode probe once every prompt is done, a mixed one while streams are replaced one by one."""
    config = config_of(machine)
    output = probe.output_tokens or min(LONGEST_OUTPUT, config.max_model_len - probe.prompt_tokens)
    group = Group(str(probe), probe.streams, probe.prompt_tokens, output, aged=probe.kind == "mixed")
    simulation = Simulation(config, Scenario((Phase("probe", MOST_SECONDS, (group,)),)), seed=seed)
    readings: list[Reading] = []
    at = 0.0
    while at < MOST_SECONDS and not _is_enough(readings, probe):
        at += READ_SECONDS
        simulation.advance(at)
        reading = read(simulation.page_text() or "", at)
        if reading is None:
            raise RuntimeError(f"{machine.label}: no page")
        if probe.kind == "mixed" or _prompts_done(reading) >= probe.streams:
            readings.append(reading)
    span = engine_span(readings, Facts(), 0.0, at)
    if span is None or span.sequences is None or span.tokens_in_flight is None:
        raise RuntimeError(f"the probe {probe} of {machine.label} gave nothing")
    return Point(
        sequences=span.sequences,
        tokens_in_flight=span.tokens_in_flight,
        prefill_tokens_per_step=(span.prefill_tokens_per_step or 0.0) if probe.kind == "mixed" else 0.0,
        itl_seconds=span.itl_seconds,
        weight_bytes=model.weights.read_bytes(span.sequences),
        kv_bytes_per_token=model.kv_bytes_per_token,
    )


def _prompts_done(reading: Reading) -> float:
    first_tokens = reading.engines[0].ttft_seconds
    return first_tokens.count if first_tokens is not None else 0.0


def _is_enough(readings: list[Reading], probe: Probe) -> bool:
    if len(readings) < 2 or readings[-1].at_seconds - readings[0].at_seconds < MEASURE_SECONDS:
        return False
    first, last = readings[0].engines[0], readings[-1].engines[0]
    if probe.kind == "mixed":
        return (last.finished_requests or 0.0) - (first.finished_requests or 0.0) >= MIXED_WAVES * probe.streams
    return (last.engine_steps or 0.0) - (first.engine_steps or 0.0) >= MIN_STEPS
