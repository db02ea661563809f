"""The environment variables that Kubernetes sets for services whose names begin with
`dragoman`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SERVICE_LINK = (
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Suffixes of the variables of a service: X_SERVICE_HOST, X_SERVICE_PORT_HTTP, X_PORT,
X_PORT_80_TCP_ADDR, ...
"""


def find_service_links(environment: Mapping[str, str]) -> set[str]:
    """Find the variables that Kubernetes sets in every pod for services whose names
    begin with `dragoman`.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    links: set[str] = set()
    for name in environment:
        service = name.removesuffix("_SERVICE_HOST")
        # Every service has both variables; a misspelled setting does not.
        if service != name and f"{service}_SERVICE_PORT" in environment:
            matches = re.compile(re.escape(service) + _SERVICE_LINK).fullmatch
            links |= {variable for variable in environment if matches(variable)}
            # DRAGOMAN_PORT is also a setting; a service's value is a URL such as
            # tcp://10.0.0.1:8000.
            if "://" not in environment.get(f"{service}_PORT", ""):
                links.discard(f"{service}_PORT")
    return links
