"""The lab: real kernels, file servers and networks on one machine, real brokers and clients on them: docs/nfs-test.md.

Plain modules beside `run.py`; nothing in `amq/` knows of them.
"""
