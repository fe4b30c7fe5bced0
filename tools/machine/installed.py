"""Which files belong to the system or to an installed package, rather than to somebody's own work."""

from __future__ import annotations

import sysconfig

_SYSTEM_PLACES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/cuda", "/usr/local/lib/")


def is_of_system(path: str) -> bool:
    """A file in a folder where the system keeps its libraries."""
    return path.startswith(_SYSTEM_PLACES)


def is_installed(path: str) -> bool:
    """A file of the system, of Python or of an installed package."""
    places = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    places.add(sysconfig.get_config_var("installed_base") or "/usr")
    return is_of_system(path) or "/site-packages/" in path or path.startswith(tuple(f"{place}/" for place in places))
