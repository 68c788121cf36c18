"""The `justitia` command, a file for each subcommand."""
