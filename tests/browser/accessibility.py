"""What axe-core finds on a page that a screen reader or a keyboard would stumble over."""

from pathlib import Path
from typing import Any

import pytest

_AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"


def serious_problems(page: Any) -> list[str]:
    """Return the serious and critical violations, each with the elements concerned."""
    if not _AXE.is_file():
        pytest.skip("needs axe-core (make console)")
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]
