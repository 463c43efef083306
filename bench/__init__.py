"""Measurements of the broker from outside: load, takeover, recovery, soak. Nothing here is imported by `amq`.

Run the scripts as modules from the root of the repository: `python -m bench.load --help`.
"""
