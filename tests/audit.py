"""`make audit`: are there known vulnerabilities in the packages of a broker host?

pip-audit says "no known vulnerabilities" also where it could not ask about a package. So this counts what was asked.
Exit code 0 = all packages were looked up and have none; 1 = there are some; 2 = the data could not be reached, for all
packages or for those that are named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OWN = "amq"
SECONDS_MAX = 300
TOOLS = {"pip", "setuptools", "wheel"}  # of the environment itself
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 2


def report(environment: Path) -> dict[str, Any] | str:
    """The answer of pip-audit for that environment, or why there is none."""
    packages = sorted(environment.glob("lib/python3*/site-packages"))
    if len(packages) != 1:
        return f"{environment} is not an environment of Python"
    command = [sys.executable, "-m", "pip_audit", "--path", str(packages[0]), "--progress-spinner", "off", "-f", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS_MAX} s"
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return (done.stderr.strip() or "pip-audit says nothing").split("\n")[-1]
    return found


def judge(found: dict[str, Any] | str) -> tuple[int, list[str]]:
    """(exit code, lines for people)"""
    if isinstance(found, str):
        return UNKNOWN, [f"the data about vulnerabilities cannot be reached, nothing was checked: {found}"]
    asked = [each for each in found["dependencies"] if each["name"].lower() not in {OWN, *TOOLS}]
    known = [each for each in asked if "skip_reason" not in each]
    skipped = sorted(each["name"] for each in asked if "skip_reason" in each)
    lines = [
        f"{each['name']} {each['version']}: {problem['id']}, mended in {', '.join(problem['fix_versions']) or 'none'}"
        for each in known
        for problem in each["vulns"]
    ]
    code = VULNERABLE if lines else CLEAN
    if skipped:
        none = "nothing was checked" if not known else f"not checked: {', '.join(skipped)}"
        lines.append(f"the data about {len(skipped)} of {len(asked)} packages cannot be reached: {none}")
        code = code or UNKNOWN
    if code == CLEAN:
        lines.append(f"{len(known)} packages, no known vulnerability")
    return code, lines


def main() -> int:
    code, lines = judge(report(Path(sys.argv[1])))
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
