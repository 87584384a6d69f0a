"""Draws a dashboard's panels with Grafana's own components, from a Prometheus, without a Grafana.

The shared tool does the drawing; this copies it, adds what it lacks, builds it once, and serves it on a free port.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

HERE = Path(__file__).resolve().parent
_DRAWN_WIDTH = 1600  # pixels, the tool's own
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_BUILD_SECONDS, _DRAW_SECONDS = 900, 60
# (what the tool has, what stands there instead). It lacks a state timeline, a panel's own words for no data, two axis
# options, the style of Markdown and the sizes of bar texts; Grafana labels no time axis, and it names the values of
# several tables apart.
_ADDITIONS = (
    ("  if(p.type==='table') return", "  if(p.type==='state-timeline') return <Timeline frames={data} w={w} h={h}/>;\n"
     "  if(p.type==='table') return"),
    (">No data</div>", ">{p.fieldConfig.defaults.noValue||'No data'}</div>"),
    ("color:'#c44',padding:20", "color:'#ccccdc',padding:12,fontSize:18"),
    ("'fillBelowTo',", "'fillBelowTo','axisSoftMin','axisSoftMax',"),
    ("shouldApply:()=>true", "shouldApply:(f)=>!(id.startsWith('axis')&&f.type===FieldType.time)"),
    ("<div dangerouslySetInnerHTML", "<div className='markdown-html' dangerouslySetInnerHTML"),
    ("text={{}}", "text={o.text||{}}"),
    (".map(query))", ".map(t=>query({...t,many:p.targets.length>1})))"),
    ("{name:'Value',type:FieldType.number,values:res.map(x=>+x.value[1])}",
     "{name:t.many?`Value #${t.refId}`:'Value',type:FieldType.number,values:res.map(x=>+x.value[1])}"),
)  # fmt: skip


def build(tool: Path, place: Path) -> Path:
    """The folder with the built tool, made in `place` unless it is there. Raises CalledProcessError if npm fails."""
    source = (tool / "main.jsx").read_text(encoding="utf-8")
    timeline = (HERE / "timeline.jsx").read_text(encoding="utf-8")
    for old, new in (("function Viz(", timeline + "function Viz("), *_ADDITIONS):
        if old not in source:
            raise ValueError(f"the shared renderer changed: {old!r} is not in its main.jsx")
        source = source.replace(old, new, 1)
    built = place / "dist"
    main = place / "main.jsx"
    if built.exists() and main.exists() and main.read_text(encoding="utf-8") == source:
        return built
    place.mkdir(parents=True, exist_ok=True)
    for name in ("index.html", "package.json", "vite.config.js"):
        shutil.copyfile(tool / name, place / name)
    install = ["npm", "install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(["nice", *install], cwd=place, check=True, timeout=_BUILD_SECONDS)
    shutil.rmtree(built, ignore_errors=True)
    main.write_text(source, encoding="utf-8")
    subprocess.run(["nice", "npx", "vite", "build"], cwd=place, check=True, timeout=_BUILD_SECONDS, capture_output=True)
    return built


@contextmanager
def serving(built: Path, prometheus_url: str, boards: Path) -> Iterator[str]:
    """The URL of a server for the built tool, the boards' JSON, and Prometheus under /prom."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urllib.parse.urlsplit(self.path).path
            if path.startswith("/prom/"):
                self._pass_on(prometheus_url + self.path.removeprefix("/prom"))
                return
            folder = boards if path.endswith(".json") else built
            file = folder / ("index.html" if path == "/" else path.lstrip("/"))
            if not file.is_file():
                self.send_error(404)
                return
            self._answer(200, _TYPES.get(file.suffix, "application/json"), file.read_bytes())

        def _pass_on(self, url: str) -> None:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(url, timeout=20) as answer:
                    self._answer(answer.status, "application/json", answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, "application/json", error.read())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def draw(
    browser: Browser,
    url: str,
    board: str,
    variables: Mapping[str, str],
    span_seconds: tuple[float, float],
    path: Path,
    height: int | None = None,
) -> dict[str, Any]:
    """Write a picture of `board` (a file name), cut at `height` pixels. Returns what each panel says: ok or why not."""
    query = urllib.parse.urlencode(
        {
            "dash": f"/{board}",
            "from": round(span_seconds[0] * 1e3),
            "to": round(span_seconds[1] * 1e3),
            "vars": json.dumps(dict(variables)),
        }
    )
    page = browser.new_page(viewport={"width": _DRAWN_WIDTH, "height": height or 1000})
    try:
        page.goto(f"{url}/?{query}")
        done = "window.__done && Object.keys(window.__done).length >= window.__total"
        page.wait_for_function(done, timeout=_DRAW_SECONDS * 1e3)
        page.wait_for_timeout(1500)  # fonts and canvases
        page.screenshot(path=path, full_page=height is None)
        reports: dict[str, Any] = page.evaluate("window.__done")
        return reports
    finally:
        page.close()
