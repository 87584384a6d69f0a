"""Writes the tables of the reference pages from the tables of the code, between two marker lines of each page.

    python -m stepscope.docs_tables [--check] [DOCS_DIRECTORY]

With --check nothing is written and the exit status is 1 if a page is out of step. Without, pages are rewritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from stepscope import config, metrics
from stepscope.errors import ConfigError
from stepscope.setting_kinds import Setting
from stepscope.settings import SETTINGS

BEGIN = "<!-- begin generated table: change the code and run `make docs` -->"
END = "<!-- end generated table -->"


def configuration_tables() -> str:
    """One table of flags per topic, in the order of the settings table."""
    parts: list[str] = []
    for topic, rows in groupby(SETTINGS.values(), key=lambda setting: setting.name.partition(".")[0]):
        parts += [f"## {topic}", "", "| flag | default | unit | meaning |", "|---|---|---|---|"]
        parts += [_setting_row(setting) for setting in rows]
        parts.append("")
    return "\n".join(parts).rstrip()


def metrics_table() -> str:
    """One row per series, in the order of the page."""
    lines = ["| series | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics.TABLE:
        labels = ", ".join(f"`{label}`" for label in metric.label_names) or "none"
        closed = f" One of: {', '.join(metric.values)}." if metric.values else ""
        lines.append(
            f"| `{metric.full_name}` | {metric.kind} | {metric.unit} | {labels} | {_cell(metric.help)}{closed} |"
        )
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration_tables, "metrics.md": metrics_table}


def rendered(page: str, table: str, name: str) -> str:
    """The page's text with what stands between its markers replaced. Raises ConfigError without exactly one pair."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ConfigError(f"{name}: needs one pair of the lines {BEGIN} and {END}")
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"


def stale_pages(directory: Path) -> Iterator[tuple[Path, str]]:
    """(path, right text) of each page that is out of step. Raises ConfigError for a page that is not there."""
    for name, table in PAGES.items():
        path = directory / name
        try:
            page = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        right = rendered(page, table(), name)
        if right != page:
            yield path, right


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 1 if --check found a page out of step, 2 for a page that cannot be used."""
    check = "--check" in argv
    directories = [argument for argument in argv if argument != "--check"]
    try:
        stale = list(stale_pages(Path(directories[0] if directories else "docs")))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for path, right in stale:
        if check:
            sys.stderr.write(f"{path}: out of step with the code; run make docs\n")
        else:
            path.write_text(right, encoding="utf-8")
            sys.stdout.write(f"{path}: written\n")
    return 1 if check and stale else 0


def _setting_row(setting: Setting[object]) -> str:
    value = "" if setting.is_switch else f"={setting.metavar}"
    default = config.default_text(setting)
    shown = default if setting.default_text or not default else f"`{default}`"
    others = "" if len(setting.commands) > 1 else f" (`{', '.join(sorted(setting.commands))}` only)"
    repeat = " (repeatable)" if setting.repeatable else ""
    flag = _cell(f"{setting.flag}{value}")
    return f"| `{flag}` | {_cell(shown)} | {setting.unit} | {_cell(setting.help)}{repeat}{others} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
