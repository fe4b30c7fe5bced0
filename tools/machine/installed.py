"""Tells files of the system or of an installed package from the user's own files."""

from __future__ import annotations

import sysconfig

_SYSTEM_PLACES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/cuda", "/usr/local/lib/")


def is_of_system(path: str) -> bool:
    """True for a file in a folder of the system's libraries."""
    return path.startswith(_SYSTEM_PLACES)


def is_installed(path: str) -> bool:
    """True for a file of the system, of Python or of an installed package."""
    places = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    places.add(sysconfig.get_config_var("installed_base") or "/usr")
    return is_of_system(path) or "/site-packages/" in path or path.startswith(tuple(f"{place}/" for place in places))
