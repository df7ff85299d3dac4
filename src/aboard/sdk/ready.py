"""A hub that can make a board of a selection: found, or started, or looking in one place more."""

from __future__ import annotations

from collections.abc import Callable

from aboard.sdk.client import Client, Selectors, as_selectors
from aboard.sdk.finding import find_hub, start_personal, state_directory, stop_personal


def ready_hub(selectors: Selectors, tell: Callable[[str], None] = lambda _: None) -> Client:
    """Return the hub that is meant; the user's own is started, and looks where he is.

    Args:
        selectors: what a board shall show; only names of runs need a root to look in.
        tell: called with what was done, in a sentence.

    Raises:
        Unreachable: there is none, and it did not start.
    """
    from aboard.runs.catalog import find_roots

    known = find_hub()
    if known is None:
        hub = start_personal()
        tell(
            f"started a hub of your own ({hub.url}); its token is in {state_directory()}."
            " 'aboard hub stop' ends it."
        )
        return Client()
    client = Client()
    asks = any("://" not in one and not one.startswith("/") for one in as_selectors(selectors))
    if known.how != "personal" or not asks:
        return client
    looked = {root["uri"] for root in client.roots()}
    if missing := [root for root in find_roots(()) if root not in looked]:
        stop_personal()
        start_personal(missing)
        tell(f"your hub looks for runs below {', '.join(missing)} too from now on.")
        return Client()
    return client
