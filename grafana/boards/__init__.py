"""Grafana dashboards as code: `queries` holds all PromQL, `style` what panels share, a module each for the boards."""
