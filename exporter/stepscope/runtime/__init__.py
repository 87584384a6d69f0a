"""The world: sockets, threads, clock, files, log lines. Thin; every decision lives in the core."""
