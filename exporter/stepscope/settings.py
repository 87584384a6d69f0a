"""The settings table: every flag, environment variable and file key, each in one place.

To add a setting, add a constant here; the flag, the variable, the file key, the help text and the reference page
(docs/configuration.md) follow from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import setting_kinds as kinds
from stepscope.setting_kinds import Setting

if TYPE_CHECKING:
    from stepscope.config import Settings

SERVE = frozenset({"serve"})
BOTH = frozenset({"serve", "check"})
PLANNED = BOTH | {"plan"}  # what is also needed to plan, offline or against a running engine
MEASURED = PLANNED | {"bench"}  # what a prediction beside measured loads needs on top of the engine's facts
ENGINE = MEASURED | {"calibrate"}  # what says where the engine is and what runs there

# What a scrape may take: below the interval, and never longer than an operator would wait for a page on loopback.
ENGINE_TIMEOUT_SHARE_OF_INTERVAL = 0.8  # the total deadline must lie below the interval
ENGINE_TIMEOUT_LARGEST_SECONDS = 4.0  # 0.8 x the default interval of 5 s
WINDOW_SECONDS = 30.0  # six usual samples
MOST_THREADS = 32768  # Linux's pid_max by default (proc(5)): more threads than that cannot be had
HOLD_SECONDS = 90.0  # three usual Prometheus scrapes of 30 s


def _engine_timeout_seconds(settings: Settings) -> float:
    return min(ENGINE_TIMEOUT_SHARE_OF_INTERVAL * settings[SAMPLE_INTERVAL], ENGINE_TIMEOUT_LARGEST_SECONDS)


def _window_seconds(settings: Settings) -> float:
    return max(WINDOW_SECONDS, settings[SAMPLE_INTERVAL])


def _hold_seconds(settings: Settings) -> float:
    # With samples further apart than the hold, good values would vanish between two good scrapes.
    return max(HOLD_SECONDS, 2 * settings[SAMPLE_INTERVAL])


# One row a setting: name, kind, default, metavar, help, commands. The formatter would give each argument its own line.
# fmt: off
ENGINE_URL = Setting("engine.url", kinds.engine_url, "http://127.0.0.1:8000", "URL",
    "Address of the engine; a path other than / is taken as the metrics page itself.", ENGINE)
ENGINE_TIMEOUT = Setting("engine.timeout", kinds.duration(least=0.05), 4.0, "DURATION",
    "Total deadline of one scrape, below the sampling interval.", ENGINE, unit="seconds",
    default_text="0.8 x --sample.interval, at most 4s", derive=_engine_timeout_seconds)
ENGINE_CONNECT_TIMEOUT = Setting("engine.connect-timeout", kinds.duration(least=0.01, most=60), 1.0, "DURATION",
    "How long the connection itself may take, inside the total deadline.", ENGINE, unit="seconds")
ENGINE_BEARER_TOKEN_FILE = Setting("engine.bearer-token-file", kinds.optional(kinds.path), None, "FILE",
    "File with a bearer token for the metrics page, read again when it changes.", ENGINE)
ENGINE_API_KEY_FILE = Setting("engine.api-key-file", kinds.optional(kinds.path), None, "FILE",
    "File with the engine's API key: for /v1/models, to learn which model is served, and for what calibrate and bench "
    "send.", ENGINE)
ENGINE_CA_FILE = Setting("engine.ca-file", kinds.optional(kinds.path), None, "FILE",
    "PEM file of the authorities that may sign the engine's certificate.", ENGINE)
ENGINE_CLIENT_CERT_FILE = Setting("engine.client-cert-file", kinds.optional(kinds.path), None, "FILE",
    "PEM certificate to show to the engine; needs --engine.client-key-file.", ENGINE)
ENGINE_CLIENT_KEY_FILE = Setting("engine.client-key-file", kinds.optional(kinds.path), None, "FILE",
    "PEM key of --engine.client-cert-file.", ENGINE)
ENGINE_INSECURE_SKIP_VERIFY = Setting("engine.insecure-skip-verify", kinds.boolean, False, "BOOL",
    "Accept any certificate from the engine.", ENGINE, is_switch=True)
ENGINE_FILTER = Setting("engine.filter", kinds.one_of("auto", "off"), "auto", "auto|off",
    "Whether to ask the engine for the wanted series only, where it can (/metrics/?name[]=...).", PLANNED)
ENGINE_MAX_PAGE_BYTES = Setting("engine.max-page-bytes", kinds.whole_number(least=1024), 32 * 2**20, "BYTES",
    "Largest metrics page that is read; a larger one counts as a failed scrape.", ENGINE, unit="bytes")

SAMPLE_INTERVAL = Setting("sample.interval", kinds.duration(least=0.2, most=300), 5.0, "DURATION",
    "Time between two samples of the engine's page.", PLANNED, unit="seconds")
SAMPLE_WINDOW = Setting("sample.window", kinds.duration(least=0.2, most=3600), WINDOW_SECONDS, "DURATION",
    "Time over which rates and means are taken; not below the interval.", SERVE, unit="seconds",
    default_text="30s, or the interval where that is longer", derive=_window_seconds)
SAMPLE_WARM_UP = Setting("sample.warm-up", kinds.duration(most=3600), 60.0, "DURATION",
    "Time after the first sample of an engine's life without a verdict.", SERVE, unit="seconds")
SAMPLE_HOLD = Setting("sample.hold", kinds.duration(most=3600), HOLD_SECONDS, "DURATION",
    "How long the last good values are published while scrapes fail.", SERVE, unit="seconds",
    default_text="90s, or two intervals where that is longer", derive=_hold_seconds)

MODEL_ID = Setting("model.id", kinds.optional(kinds.text), None, "ORG/NAME",
    "Model, looked up in the Hugging Face caches, then in the shipped table.", ENGINE,
    default_text="what the engine's /v1/models says")
MODEL_CONFIG = Setting("model.config", kinds.optional(kinds.path), None, "PATH",
    "The model's config.json, or the directory that holds it; instead of --model.id.", ENGINE)
MODEL_HF_CACHE: Setting[tuple[Path, ...]] = Setting("model.hf-cache", kinds.paths, (), "DIR",
    "Hugging Face cache to look in; may be repeated or hold several, separated by colons.", ENGINE, repeatable=True,
    default_text="HF_HUB_CACHE, HF_HOME, else ~/.cache/huggingface/hub")
MODEL_WEIGHT_BYTES = Setting("model.weight-bytes", kinds.optional(kinds.number(above=0)), None, "BYTES",
    "Bytes of weights that a decode step reads, all GPUs together.", ENGINE, unit="bytes")
MODEL_KV_BYTES_PER_TOKEN = Setting("model.kv-bytes-per-token", kinds.optional(kinds.number(above=0)), None, "BYTES",
    "Bytes of KV per context token, all GPUs together.", ENGINE, unit="bytes")
MODEL_ACTIVE_PARAMS = Setting("model.active-params", kinds.optional(kinds.number(above=0)), None, "COUNT",
    "Parameters that work on one token, for the compute term.", ENGINE)
MODEL_KV_CACHE_DTYPE = Setting("model.kv-cache-dtype", kinds.optional(kinds.text), None, "DTYPE",
    "Element type of the KV cache, as in vLLM's --kv-cache-dtype.", ENGINE, default_text="what the engine's page says")

KV_CAPACITY_TOKENS = Setting("kv.capacity-tokens", kinds.optional(kinds.number(above=0)), None, "TOKENS",
    "KV capacity of one engine; wins over what the engine's page says.", ENGINE, unit="tokens")
KV_POOL_BYTES = Setting("kv.pool-bytes", kinds.optional(kinds.number(above=0)), None, "BYTES",
    "Bytes of one engine's KV pool, for hybrid models, whose bytes are not proportional to tokens.",
    BOTH | {"bench", "calibrate"}, unit="bytes")

HARDWARE_GPU = Setting("hardware.gpu", kinds.optional(kinds.text), None, "NAME",
    "GPU, for example H100-SXM; gives the numbers below from the shipped table.", ENGINE)
HARDWARE_COUNT = Setting("hardware.count", kinds.whole_number(least=1), 1, "COUNT",
    "GPUs that one engine uses (tensor parallel x pipeline parallel).", ENGINE)
HARDWARE_PEAK_BANDWIDTH = Setting("hardware.peak-bandwidth-bytes-per-second",
    kinds.optional(kinds.number(above=0)), None, "NUMBER",
    "Memory bandwidth of one GPU by its data sheet.", ENGINE, unit="bytes per second")
HARDWARE_PEAK_FLOPS = Setting("hardware.peak-flops", kinds.optional(kinds.number(above=0)), None, "NUMBER",
    "Dense 16-bit FLOP/s of one GPU by its data sheet.", ENGINE, unit="FLOP per second")
HARDWARE_MEMORY_BYTES = Setting("hardware.memory-bytes", kinds.optional(kinds.number(above=0)), None, "BYTES",
    "Memory of one GPU.", ENGINE, unit="bytes")

OBJECTIVE_TOKENS_PER_SECOND = Setting("objective.tokens-per-second",
    kinds.optional(kinds.number(above=0)), None, "NUMBER",
    "Speed promised to each user.", PLANNED, unit="tokens per second and user")
OBJECTIVE_HEADROOM = Setting("objective.headroom", kinds.number(above=0, most=1), 0.9, "RATIO",
    "Share of the promised step time that decoding may use; the rest is for prefill chunks.", PLANNED, unit="ratio")
OBJECTIVE_TTFT_SECONDS = Setting("objective.ttft-seconds", kinds.optional(kinds.number(above=0)), None, "SECONDS",
    "Time to first token promised to each user.", PLANNED, unit="seconds")

CALIBRATION_FILE = Setting("calibration.file", kinds.optional(kinds.path), None, "FILE",
    "Calibration made by stepscope calibrate; instead of the numbers below.", MEASURED)
CALIBRATION_EFFECTIVE_BANDWIDTH = Setting("calibration.effective-bandwidth-bytes-per-second",
    kinds.optional(kinds.number(above=0)), None, "NUMBER",
    "Rate at which a step's reads proceed, all GPUs together; the numbers below are 0 where not given.", MEASURED,
    unit="bytes per second")
CALIBRATION_STEP_OVERHEAD = Setting("calibration.step-overhead-seconds",
    kinds.optional(kinds.number(least=0)), None, "SECONDS",
    "Part of a step that depends on neither bytes nor sequences.", MEASURED, unit="seconds")
CALIBRATION_SEQUENCE_COST = Setting("calibration.sequence-cost-seconds",
    kinds.optional(kinds.number(least=0)), None, "SECONDS",
    "Extra time per sequence in the step.", MEASURED, unit="seconds")
CALIBRATION_PREFILL_COST = Setting("calibration.prefill-cost-seconds-per-token",
    kinds.optional(kinds.number(least=0)), None, "SECONDS",
    "Extra time per prompt token computed in the step.", MEASURED, unit="seconds per token")

WEB_LISTEN_ADDRESS = Setting("web.listen-address", kinds.listen_address, ":10094", "ADDRESS",
    "Where stepscope's own pages are served.", SERVE)
WEB_CONFIG_FILE = Setting("web.config.file", kinds.optional(kinds.path), None, "FILE",
    "TLS and basic authentication, in the format of the Prometheus exporter toolkit.", SERVE)

ADMISSION_ENABLED = Setting("admission.enabled", kinds.boolean, False, "BOOL",
    "Lease context tokens to gateways: POST /v1/leases (docs/admission.md).", SERVE, is_switch=True)
ADMISSION_OBSERVE_ONLY = Setting("admission.observe-only", kinds.boolean, False, "BOOL",
    "Refuse nothing, only count what would have been refused.", SERVE, is_switch=True)
ADMISSION_BEARER_TOKEN_FILE = Setting("admission.bearer-token-file", kinds.optional(kinds.path), None, "FILE",
    "File with the token that gateways show; without it only clients on this host, or with a password, are served.",
    SERVE)
ADMISSION_BUDGET_TOKENS = Setting("admission.budget-tokens", kinds.optional(kinds.number(above=0)), None, "TOKENS",
    "A budget beside those for speed and memory; the smallest counts.", SERVE, unit="tokens")
ADMISSION_CLASS_SHARES = Setting("admission.class-shares", kinds.shares, kinds.shares("default=1,long=0.5"),
    "NAME=SHARE,...", "Classes of requests and the share of the budget each may hold; the first is for requests that "
    "name none.", SERVE, unit="ratio")
ADMISSION_LONG_CONTEXT_TOKENS = Setting("admission.long-context-tokens", kinds.number(above=0), 32768.0, "TOKENS",
    "A lease of so many tokens belongs to the class long, whatever it says.", SERVE, unit="tokens")
ADMISSION_DEFAULT_TTL = Setting("admission.default-ttl", kinds.duration(least=0.1, most=86400), 60.0, "DURATION",
    "How long a lease lives that names no time; a gateway renews it while its request runs.", SERVE, unit="seconds")
ADMISSION_LONGEST_TTL = Setting("admission.longest-ttl", kinds.duration(least=0.1, most=86400), 600.0, "DURATION",
    "Longest time a lease may ask for: what a crashed gateway can hold back.", SERVE, unit="seconds")
ADMISSION_MAX_LEASES = Setting("admission.max-leases", kinds.whole_number(least=1), 10000, "COUNT",
    "Leases at once, beyond which all are refused.", SERVE)
ADMISSION_MAX_CONNECTIONS = Setting("admission.max-connections", kinds.whole_number(least=1, most=MOST_THREADS), 1024,
    "COUNT",
    "Connections that gateways may keep open, beside those of scrapers and people; each costs a thread.", SERVE)
ADMISSION_MAX_REQUESTS_PER_SECOND = Setting("admission.max-requests-per-second", kinds.number(above=0), 2000.0,
    "NUMBER", "Requests for leases and to /v1/budget per second, all clients together; leases are always renewed and "
    "released.", SERVE,
    unit="requests per second")
ADMISSION_WHEN_UNKNOWN = Setting("admission.when-unknown", kinds.one_of("admit", "refuse"), "admit", "admit|refuse",
    "What to do while no budget is known, neither for speed nor memory nor --admission.budget-tokens: engine down or "
    "starting.", SERVE)

STATE_FILE = Setting("state.file", kinds.optional(kinds.path), None, "FILE",
    "Where the step law that is learned online is kept over restarts (docs/learning.md).", SERVE)

LOG_LEVEL = Setting("log.level", kinds.one_of("debug", "info", "warning", "error"), "info",
    "debug|info|warning|error", "Least severe lines that are logged.", BOTH)
LOG_FORMAT = Setting("log.format", kinds.one_of("text", "json"), "text", "text|json",
    "How lines are logged.", BOTH)

CONFIG_FILE = Setting("config.file", kinds.optional(kinds.path), None, "FILE",
    "YAML file with any of these settings, nested or with dots.", ENGINE, in_file=False)
CONFIG_ON_ERROR = Setting("config.on-error", kinds.one_of("exit", "degrade"), "exit", "exit|degrade",
    "What a wrong setting does: end with status 2, or serve with what is right and config_ok 0.", SERVE, in_file=False)
CONFIG_CHECK = Setting("config.check", kinds.boolean, False, "BOOL",
    "Only check the settings; end with status 0 or 2.", SERVE, in_file=False, is_switch=True)
# fmt: on

SETTINGS: dict[str, Setting[Any]] = {
    value.name: value for value in tuple(globals().values()) if isinstance(value, Setting)
}
