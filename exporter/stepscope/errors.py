"""Errors that reach an operator. The text of each is one line that says what is wrong and where."""


class StepscopeError(Exception):
    """Base class: `str(error)` is one line fit for an operator; the command exits 2, without a traceback."""


class ConfigError(StepscopeError):
    """A flag, environment variable or file key is wrong; the text names it."""


class FactError(StepscopeError):
    """Model or hardware facts cannot be read or do not make sense."""


class StateError(StepscopeError):
    """What is kept over restarts cannot be read, written or used; never a reason to end."""


class NotMetricsError(StepscopeError):
    """The body is not a whole Prometheus text page (HTML, JSON, empty, cut inside a line)."""


class ScrapeError(StepscopeError):
    """A scrape failed. `outcome` is the value of the label of `stepscope_engine_scrapes_total`.

    outcome: timeout, connection, http_status, not_metrics, too_large or no_engine_metrics.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
