"""The `amq` command: thin click commands over the package. `amq COMMAND --help` explains each."""
