"""Hidden files beside a shard while its stage is made, each named `.SHARD` and an ending."""

from rewardedit.files import AnyPath

CLAIM = ".claim"  # lease of the process that makes the shard, see `leases`
PARTIAL = ".partial"  # the shard while it is written, see `files.replaced`
SIZES = ".sizes"  # sizes of its files in bytes, by which a truncated shard is recognised
TRIES = ".tries"  # number of Ray workers that began it and did not finish
USED = ".usage"  # usage of endpoints for it
ENDINGS = (CLAIM, PARTIAL, SIZES, TRIES, USED)


def beside(path: AnyPath, ending: str) -> AnyPath:
    """Path of a shard's hidden file with this ending."""
    return path.with_name(f".{path.name}{ending}")


def is_hidden(path: AnyPath) -> bool:
    """True for a hidden file of any shard."""
    return path.name.startswith(".") and path.suffix in ENDINGS
