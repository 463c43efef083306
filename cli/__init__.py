"""The `amq` command: thin click commands over the package. Every command and option is in docs/cli.md."""
