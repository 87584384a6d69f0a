"""What one writes in an afternoon: get the page, parse it whole, set gauges; once a second.

    python benchmarks/naive_exporter.py ENGINE_URL

A baseline, not an example. Prints its number of scrapes after each.
"""

from __future__ import annotations

import sys
import time

import requests
from prometheus_client import Gauge, start_http_server
from prometheus_client.parser import text_string_to_metric_families

_WANTED = {
    "vllm:num_requests_running": Gauge("naive_requests_running", "Requests running."),
    "vllm:kv_cache_usage_perc": Gauge("naive_kv_cache_usage_ratio", "Share of KV blocks in use."),
    "vllm:inter_token_latency_seconds_sum": Gauge("naive_itl_seconds_sum", "Sum of inter-token gaps."),
    "vllm:inter_token_latency_seconds_count": Gauge("naive_itl_seconds_count", "Count of inter-token gaps."),
}


def main(url: str) -> None:
    """Scrape until ended."""
    start_http_server(0, "127.0.0.1")
    due = time.monotonic()
    scrapes = 0
    while True:
        text = requests.get(f"{url}/metrics", timeout=1.0).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                gauge = _WANTED.get(sample.name)
                if gauge is not None:
                    gauge.set(sample.value)
        scrapes += 1
        sys.stdout.write(f"{scrapes}\n")
        sys.stdout.flush()
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
