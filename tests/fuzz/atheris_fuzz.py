"""Coverage-guided fuzzing of one target, by hand. Needs atheris (`pip install atheris`), which no test asks for.

    python -m tests.fuzz.atheris_fuzz segment -runs=1000000 -max_len=4096
    python -m tests.fuzz.atheris_fuzz all -max_total_time=3600

Run it at the top of the repository. The first argument is a target of `tests/fuzz/targets.py`, or `all`; the rest goes
to libFuzzer. What it finds is in a file `crash-…`; give that file instead of options to see it again. Exit code 2:
atheris is missing, or there is no such target.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with atheris.instrument_imports(include=["amq"]):
        from tests.fuzz.targets import TARGETS
    name, *options = arguments or [""]
    chosen = list(TARGETS.values()) if name == "all" else [target for key, target in TARGETS.items() if key == name]
    if not chosen:
        print(f"give a target first: {', '.join(TARGETS)} or all", file=sys.stderr)
        return 2

    def one_input(data: bytes) -> None:
        """With `all` the first byte chooses the target."""
        if len(chosen) == 1:
            chosen[0].check(data)
        elif data:
            chosen[data[0] % len(chosen)].check(data[1:])

    with tempfile.TemporaryDirectory() as seeds:
        for number, target in enumerate(chosen):
            prefix = bytes([number]) if len(chosen) > 1 else b""
            for seed, data in enumerate(target.seeds()):
                Path(seeds, f"{target.name}-{seed}").write_bytes(prefix + data)
        replaying = any(Path(option).is_file() for option in options)
        atheris.Setup([sys.argv[0], *options, *([] if replaying else [seeds])], one_input)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
