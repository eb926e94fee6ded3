"""The `taot` command line."""
