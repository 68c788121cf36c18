"""The `justitia` command, with one module per subcommand."""
