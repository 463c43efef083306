"""The pages of a cluster in a real browser, on a desk and on a phone, once in each theme: nothing overlaps, is cut or
cannot be reached, and axe-core has no complaint. The pictures of pages that are wrong are in build/screenshots/pages;
docs/cluster.md has two of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.served import served_cluster
from tests.console.browsers import HEIGHT, ROOT, WIDTH, axe, browser_page, complaints, console_of, log_in
from tests.console.test_console_layout import CHECK, SIZES, long_name
from tests.console.test_console_pictures import picture

pytestmark = pytest.mark.deep


def test_every_page_of_a_cluster_is_readable(tmp_path: Path) -> None:
    script, folder = axe(), ROOT / "build" / "screenshots" / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    wrong: dict[str, Any] = {}
    with served_cluster(tmp_path, stores=5, served=4) as served:
        seat = served.cluster.join("a", 1.0, "host-a", 1)
        served.cluster.join("b.example", 2.0, "host-b", 1).close()
        for number in range(12):
            name = long_name(number)
            if served.home(name) in served.names:
                served.fill(name, number + 1)
        for number, name in enumerate(("orders", "invoices", "payments", "shipments", "returns")):
            if served.home(name) in served.names:
                served.fill(name, 60 - 8 * number)
        shown = next(name for name in map(long_name, range(12)) if served.home(name) in served.names)
        place = f"/stores/{served.home(shown)}/queue/{shown}"
        with console_of("--cluster", served.directory, "--name", "a") as url:
            for size, scheme in ("desk", "light"), ("phone", "dark"):
                with browser_page(bypass_csp=True, color_scheme=scheme, viewport=SIZES[size]) as page:
                    log_in(page, url)
                    page.get_by_text("STORE_WITHOUT_MASTER").first.wait_for()
                    for title, path in (
                        ("stores", "/"),
                        ("queues", "/queues"),
                        ("queue", place),
                        ("find", "/search?text=orders"),
                    ):
                        page.goto(f"{url}{path}")
                        page.locator("h1").first.wait_for()
                        page.evaluate("document.fonts.ready")
                        found = page.evaluate(f"({CHECK})()")
                        found += complaints(page, script)
                        if found:
                            wrong[f"{title} {size}"] = found
                            shot = folder / f"cluster-{title}-{size}-{scheme}.png"
                            page.screenshot(path=str(shot), full_page=True, animations="disabled")
                    for title, path in (("stores", "/"), ("queues", "/queues?name=*s")) if size == "desk" else ():
                        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                        page.goto(f"{url}{path}")
                        page.evaluate("document.fonts.ready")
                        picture(page, f"cluster-{title}")
        seat.close()
    assert wrong == {}
