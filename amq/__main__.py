"""`python -m amq` is the `amq` command."""

import importlib

importlib.import_module("amq.cli.main").main(prog_name="amq")
