"""Sizes in bytes as people write them. Pure."""

import re

_SIZE_PATTERN = re.compile(r"([0-9]{1,12})\s*([KMGT]?)(i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """`"512M"`, `"2GiB"` or `"1000"` in bytes, units are powers of 1024; `ValueError` for anything
    else."""
    found = _SIZE_PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!a} is not a size, as in 512M or 2G")
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")
