"""One module per subcommand, each with `HELP`, `add_arguments(parser)` and `run(args) -> exit code`."""
