"""`stepscope serve`: the sidecar itself."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal

from stepscope import config
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.errors import StepscopeError
from stepscope.runtime import webconfig
from stepscope.runtime.log import make_logger
from stepscope.runtime.sidecar import Sidecar, pipeline_of
from stepscope.stop_signals import Signals

_STOP = frozenset({signal.SIGTERM, signal.SIGINT})
HELP = "Watch one engine and publish predicted next to measured step time."

# Settings that are valid as text and name something that may not be there: a file, a model, a GPU.
_NAMES_SOMETHING = (
    table.HARDWARE_GPU,
    table.MODEL_ID,
    table.MODEL_CONFIG,
    table.CALIBRATION_FILE,
    table.WEB_CONFIG_FILE,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the settings table."""
    config.add_arguments(parser, "serve")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 then. Raises StepscopeError (exit 2) for a wrong configuration."""
    degrade = config.wants_degrade(args, os.environ)
    if degrade:
        settings, errors = config.degraded("serve", args, os.environ)
    else:
        settings, errors = config.load("serve", args, os.environ), ()
    log = make_logger(settings[table.LOG_LEVEL], settings[table.LOG_FORMAT])
    if settings[table.CONFIG_CHECK]:
        pipeline_of(settings, dict(os.environ)).scraper.close()
        web_file = settings[table.WEB_CONFIG_FILE]
        if web_file is not None:
            webconfig.load(web_file)
        if errors:
            raise StepscopeError(errors[0])
        print("the configuration is valid")
        return 0
    sidecar = _degraded_sidecar(settings, errors, args, log) if degrade else _sidecar(settings, (), args, log)
    return _serve(sidecar, log)


def _sidecar(settings: Settings, errors: tuple[str, ...], args: argparse.Namespace, log: logging.Logger) -> Sidecar:
    return Sidecar(
        settings,
        log,
        reread=lambda: config.load("serve", args, os.environ),
        config_errors=errors,
        environ=dict(os.environ),
    )


def _degraded_sidecar(
    settings: Settings, errors: tuple[str, ...], args: argparse.Namespace, log: logging.Logger
) -> Sidecar:
    """A sidecar that runs whatever the configuration says: faulty facts are left out, at worst all of it.

    As an injected sidecar, ending would hold its pod down.
    """
    for line in errors:
        log.error("running degraded: %s", line)
    try:
        return _sidecar(settings, errors, args, log)
    except StepscopeError:
        settings, faults = _without_faulty_facts(settings, args, log)
    for line in faults:
        log.error("running degraded: %s", line)
    errors = (*errors, *faults)
    try:
        return _sidecar(settings, errors, args, log)
    except StepscopeError as error:
        log.error("running degraded, on defaults: %s", error)
        defaults = Settings.of(
            (table.ENGINE_URL, settings[table.ENGINE_URL]),
            (table.WEB_LISTEN_ADDRESS, settings[table.WEB_LISTEN_ADDRESS]),
            (table.SAMPLE_INTERVAL, settings[table.SAMPLE_INTERVAL]),
        )
        return _sidecar(defaults, (*errors, str(error)), args, log)


def _without_faulty_facts(
    settings: Settings, args: argparse.Namespace, log: logging.Logger
) -> tuple[Settings, tuple[str, ...]]:
    """The settings without those that name something unusable, and one line for each: the others keep their say."""
    faults = []
    faulty = []
    for setting in _NAMES_SOMETHING:
        alone = settings.without(*(other for other in _NAMES_SOMETHING if other is not setting))
        try:
            _sidecar(alone, (), args, log)
        except StepscopeError as error:
            faulty.append(setting)
            faults.append(f"{setting.flag}: {error}")
    return settings.without(*faulty), tuple(faults)


def _serve(sidecar: Sidecar, log: logging.Logger) -> int:
    with contextlib.closing(Signals(*_STOP, signal.SIGHUP)) as signals:
        sidecar.start()
        while not _STOP & (came := signals.wait()):
            if signal.SIGHUP in came:
                with contextlib.suppress(StepscopeError):  # said in the log and in config_ok; the old one stands
                    sidecar.reload()
    log.info("stopping")
    if not sidecar.stop():
        # A thread hangs in a call that nothing can end (a name lookup). The pod must not wait for it.
        logging.shutdown()
        os._exit(0)
    return 0
