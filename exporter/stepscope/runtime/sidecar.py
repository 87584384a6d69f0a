"""The running sidecar: builds the parts from settings, starts, reloads and stops them."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stepscope import __version__
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.observer import Policy
from stepscope.core.snapshot import Snapshot
from stepscope.errors import StepscopeError
from stepscope.runtime import webconfig
from stepscope.runtime.admission import Admission
from stepscope.runtime.collector import SnapshotCollector, make_registry
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.learning import Learning
from stepscope.runtime.pages import make_routes
from stepscope.runtime.sampler import Pipeline, Sampler
from stepscope.runtime.schedule import Schedule
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.runtime.state import State
from stepscope.runtime.web import Limits, WebServer

_STOP_SECONDS = 1.5  # for all threads to end, together; a pod's grace period must not be needed


def policy_of(settings: Settings) -> Policy:
    """How to judge."""
    return Policy(
        interval_seconds=settings[table.SAMPLE_INTERVAL],
        window_seconds=settings[table.SAMPLE_WINDOW],
        warm_up_seconds=settings[table.SAMPLE_WARM_UP],
        objective_tokens_per_second=settings[table.OBJECTIVE_TOKENS_PER_SECOND],
        headroom=settings[table.OBJECTIVE_HEADROOM],
        objective_ttft_seconds=settings[table.OBJECTIVE_TTFT_SECONDS],
    )


def scraper_of(settings: Settings) -> Scraper:
    """How to reach the engine. Raises ConfigError."""
    return Scraper(
        ScrapeOptions(
            url=settings[table.ENGINE_URL],
            deadline_seconds=settings[table.ENGINE_TIMEOUT],
            connect_timeout_seconds=settings[table.ENGINE_CONNECT_TIMEOUT],
            max_bytes=settings[table.ENGINE_MAX_PAGE_BYTES],
            bearer_token_file=settings[table.ENGINE_BEARER_TOKEN_FILE],
            ca_file=settings[table.ENGINE_CA_FILE],
            client_cert_file=settings[table.ENGINE_CLIENT_CERT_FILE],
            client_key_file=settings[table.ENGINE_CLIENT_KEY_FILE],
            insecure_skip_verify=settings[table.ENGINE_INSECURE_SKIP_VERIFY],
        )
    )


def pipeline_of(settings: Settings, environ: Mapping[str, str]) -> Pipeline:
    """Everything between the engine's page and a snapshot. Raises ConfigError or FactError."""
    scraper = scraper_of(settings)
    return Pipeline(
        scraper=scraper,
        facts=FactsKeeper(settings, scraper.client, environ),
        policy=policy_of(settings),
        hold_seconds=settings[table.SAMPLE_HOLD],
        filter_on_server=settings[table.ENGINE_FILTER] == "auto",
    )


def limits_of(settings: Settings) -> Limits:
    """Places for connections: those of scrapers and people, and where leases are given those of the gateways."""
    limits = Limits()
    if settings[table.ADMISSION_ENABLED]:
        limits = replace(limits, connections=limits.connections + settings[table.ADMISSION_MAX_CONNECTIONS])
    return limits


def first_snapshot(config_errors: tuple[str, ...] = ()) -> Snapshot:
    """What is published before the first sample."""
    return Snapshot(
        version=__version__,
        revision=os.environ.get("SOURCE_REVISION", "unknown"),  # set by the image build
        python_version=platform.python_version(),
        config_ok=not config_errors,
        config_errors=config_errors,
    )


class Sidecar:
    """One engine watched, one port served. `start`, then `reload` at will, then `stop`; no thread is left."""

    def __init__(
        self,
        settings: Settings,
        log: logging.Logger,
        *,
        reread: Callable[[], Settings],
        config_errors: tuple[str, ...] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`reread`: the settings anew, for a reload; raises StepscopeError. Raises ConfigError or FactError itself."""
        self._settings = settings
        self._log = log
        self._reread = reread
        self._environ = environ
        self._reloading = threading.Lock()
        self.state = State(first_snapshot(config_errors))
        self._learning = Learning(log, settings[table.STATE_FILE])
        self._sampler = Sampler(pipeline_of(settings, environ), self.state, log, learning=self._learning)
        self._admission = Admission(settings, log) if settings[table.ADMISSION_ENABLED] else None
        self._collector = SnapshotCollector(
            self._snapshot_for_metrics, time.monotonic, hold_seconds=settings[table.SAMPLE_HOLD]
        )
        web_file = settings[table.WEB_CONFIG_FILE]
        self.web = WebServer(
            settings[table.WEB_LISTEN_ADDRESS],
            make_routes(
                self.state, make_registry(self._collector), self.config, self.reload, self._learning.recalibrate
            )
            | (self._admission.routes() if self._admission else {}),
            webconfig.load(web_file) if web_file is not None else webconfig.WebConfig(),
            log=log,
            limits=limits_of(settings),
            bearer_paths=self._admission.bearer_paths if self._admission else frozenset(),
        )
        self._schedule = Schedule(self._sample, settings[table.SAMPLE_INTERVAL])

    def _sample(self) -> None:
        self._sampler.sample()
        if self._admission is not None:
            self._admission.after_sample(self.state.snapshot)

    def _snapshot_for_metrics(self) -> Snapshot:
        snapshot = self.state.snapshot
        return snapshot if self._admission is None else replace(snapshot, admission=self._admission.view())

    def config(self) -> Mapping[str, Any]:
        """The settings in use, secrets hidden."""
        return self._settings.as_dict(hide_secrets=True)

    def start(self) -> None:
        """Listen, then sample. Raises ConfigError when the port cannot be had."""
        self.web.start()
        self._schedule.start()
        url = self._settings[table.ENGINE_URL]
        self._log.info("serving on %s, watching %s", self.web.address, url)

    def reload(self) -> None:
        """Read the settings again and use them from the next sample on; on an error nothing changes but `config_ok`.

        What is bound at the start stays: the listen address, --web.config.file itself, --state.file, and of admission
        what the log line names.
        """
        with self._reloading:
            try:
                settings = self._reread()
                pipeline = pipeline_of(settings, self._environ)
                fixed = self._reload_admission(settings)
            except StepscopeError as error:
                self._log.error("not reloaded, the old configuration stands: %s", error)
                self._publish_config((str(error),))
                raise
            old, self._sampler.pipeline = self._sampler.pipeline, pipeline
            self._settings = settings
            self._collector.hold_seconds = settings[table.SAMPLE_HOLD]
            self._schedule.every(settings[table.SAMPLE_INTERVAL])
            self._schedule.after_this_run(old.scraper.close)  # a scrape in flight may end in peace
            self._publish_config(())
            self._log.info("reloaded%s", f"; takes a restart: --{', --'.join(fixed)}" if fixed else "")

    def _reload_admission(self, settings: Settings) -> tuple[str, ...]:
        """Names of the admission settings that changed and stay as they were at the start."""
        if self._admission is not None:
            return self._admission.reload(settings)
        return (table.ADMISSION_ENABLED.name,) if settings[table.ADMISSION_ENABLED] else ()

    def _publish_config(self, errors: tuple[str, ...]) -> None:
        snapshot = self.state.snapshot
        self.state.publish(replace(snapshot, config_ok=not errors, config_errors=errors))

    def stop(self) -> bool:
        """End the scrape in flight and every thread. True if all ended in time."""
        deadline_seconds = time.monotonic() + _STOP_SECONDS
        self._sampler.pipeline.scraper.abort()
        ended = threading.Thread(target=self._schedule.stop, name="stepscope-stop", daemon=True)
        ended.start()
        self.web.stop(_STOP_SECONDS)
        ended.join(max(0.0, deadline_seconds - time.monotonic()))
        self._sampler.pipeline.scraper.close()
        return not ended.is_alive()
