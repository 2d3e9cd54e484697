"""Asks for known vulnerabilities in the installed packages: `make audit`.

Exit codes: 0 none known, 1 some, 3 nothing could be checked. pip-audit calls it a success when its
service knows none of the packages, as a mirror of PyPI does that has no such data; here it is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

FOUND, NOT_CHECKED = 1, 3
_COMMAND = ("-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "20")


def main() -> int:
    """Runs pip-audit on this environment, says what came of it, and returns the exit code."""
    done = subprocess.run(
        [sys.executable, *_COMMAND, *sys.argv[1:]], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip() or "pip-audit said nothing").splitlines()[-1]
        return _not_checked(f"pip-audit could not ask its service ({last})")
    return judge(packages)


def judge(packages: list[dict[str, Any]]) -> int:
    """Says what pip-audit found and returns the exit code.

    Args:
        packages: The entries of its JSON.
    """
    checked = [package for package in packages if "skip_reason" not in package]
    skipped = len(packages) - len(checked)
    for package in checked:
        for flaw in package.get("vulns", []):
            fixed = ", ".join(flaw.get("fix_versions", [])) or "no version yet"
            print(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}")
    if not checked:
        return _not_checked(f"its service knows none of the {skipped} packages")
    flawed = [package["name"] for package in checked if package.get("vulns")]
    print(f"{len(checked)} packages checked, {len(flawed)} with known vulnerabilities.")
    if skipped:
        print(f"{skipped} packages are unknown to the service and were not checked.")
    return FOUND if flawed else 0


def _not_checked(why: str) -> int:
    print(
        f"audit: nothing was checked: {why}. This is neither a finding nor an all-clear. What to "
        "do: try again where https://pypi.org can be reached.",
        file=sys.stderr,
    )
    return NOT_CHECKED


if __name__ == "__main__":
    sys.exit(main())
