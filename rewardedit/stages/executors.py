"""Executors for the shards of a stage: the processes that a launcher started together, or a Ray cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewardedit.files import AnyPath, remove, replaced, sizes, write_json
from rewardedit.language.usage import record_usage
from rewardedit.models.extras import install_command
from rewardedit.processes import processes
from rewardedit.stages.hidden import SIZES, TRIES, USED, beside
from rewardedit.stages.leases import Leases
from rewardedit.untrusted import read_json_file

LONGEST_PAUSE = 0.5  # longest pause in seconds between two checks of other processes' results
MAX_TRIES = 3  # attempts at a shard whose workers die
Make = Callable[[int, Path], None]


@dataclass(frozen=True)
class Shards:
    """The shards that a stage is to make."""

    make: Make  # writes the shard of a number to the given path
    paths: list[AnyPath]  # paths of all shards of the stage
    numbers: Sequence[int]  # numbers of the shards to make now
    is_whole: Callable[[], bool]  # True if others have finished the stage and perhaps removed its shards
    seen: set[int] = field(default_factory=set)  # numbers of the shards that were found complete

    def missing(self) -> list[int]:
        """Numbers of the shards that are missing or incomplete."""
        try:
            names = {path.name for path in self.paths[0].parent.iterdir()} if self.paths else set()
        except FileNotFoundError:  # the stage is over, and its folder gone
            return []
        existing = [i for i in self.numbers if self.paths[i].name in names and i not in self.seen]
        self.seen.update(i for i in existing if is_whole_shard(self.paths[i]))
        return [i for i in self.numbers if self.paths[i].name not in names or i not in self.seen]


Engine = Callable[[Shards], None]


class Backoff:
    """Sleeps, each time longer, up to `LONGEST_PAUSE`."""

    def __init__(self) -> None:
        self.seconds = 0.02

    def __call__(self) -> None:
        time.sleep(self.seconds)
        self.seconds = min(1.5 * self.seconds, LONGEST_PAUSE)


def run_in_processes(shards: Shards) -> None:
    """Makes the shards with all processes that run this same command, on any machines that share the folder.

    Process r of n starts with its own shards, r, r + n, …, and continues with those that no other has begun,
    so that late processes find their part and shards of dead processes are made by others. It returns when
    all shards are complete.
    """
    state = processes()
    assigned = list(shards.numbers[state.process_index :: state.num_processes])
    others = sorted(set(shards.numbers) - set(assigned), reverse=True)  # from the end where no owner starts
    leases = Leases()
    backoff = Backoff()
    while True:
        missing = set(shards.missing())
        if not missing or shards.is_whole():
            return
        todo = [i for i in (*assigned, *others) if i in missing]
        made = 0
        name = shards.paths[0].parent.name
        quiet = not state.is_main_process
        for i in tqdm(todo, desc=name, unit="shard", disable=quiet, leave=False):
            if shards.is_whole():
                return
            path = shards.paths[i]
            with leases.claim(path) as granted:
                if granted and not is_whole_shard(path) and not shards.is_whole():
                    remove(path)  # an incomplete one
                    make_shard(shards, i, partial(leases.is_held, path))
                    made += 1
        if not made:
            backoff()


class _LeaseLost(Exception):
    """Others took this process for dead, and now make the shard or have finished the stage."""


def make_shard(shards: Shards, number: int, is_held: Callable[[], bool] = lambda: True) -> None:
    """Makes one shard, completely or not at all; makes nothing if others have finished the stage meanwhile.
    Its endpoint usage and its sizes are written next to it before the shard itself appears.

    Args:
        is_held: returns True while this process holds the lease of the shard.
    """
    path = shards.paths[number]
    try:
        with replaced(path, in_stage=True) as aside:
            with record_usage(beside(path, USED)):
                shards.make(number, aside)
            if shards.is_whole() or not is_held():
                raise _LeaseLost
            if isinstance(path, Path):
                write_json(beside(path, SIZES), sizes(aside), in_stage=True)
    except _LeaseLost:
        return
    except Exception:
        if is_held() and not shards.is_whole():
            raise
        # otherwise the error may come from others, who have removed the unfinished shard


def is_whole_shard(path: AnyPath) -> bool:
    """True for a shard whose files have their recorded sizes: a power cut may leave it empty or truncated. A
    shard without recorded sizes, as from earlier versions, only needs to be non-empty.
    """
    if not isinstance(path, Path):
        return path.exists()
    try:
        actual = sizes(path)
    except FileNotFoundError:
        return False
    try:
        return read_json_file(beside(path, SIZES)) == actual
    except FileNotFoundError:
        return any(actual.values())
    except ValueError:  # the record of sizes is damaged
        return False


def run_on_ray(shards: Shards) -> None:
    """Makes the shards with Ray Data, on the cluster that RAY_ADDRESS names or on a local one.

    Each actor holds the models once: one actor per GPU, or per CPU except one, which reads and schedules. A
    shard whose worker dies is given to another, at most `MAX_TRIES` in all. All machines must share the
    folder, the data and the hub's cache.

    Raises:
        ValueError: if Ray is missing, a shard cannot be made, or the machines do not share the folder.
        RuntimeError: if several processes were launched.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError(f"engine ray needs Ray: {install_command('ray')}") from error

    if processes().num_processes > 1:
        raise RuntimeError("engine ray: start the command once; Ray starts the workers")
    missing = shards.missing()
    if not missing:
        return

    for i in missing:
        remove(beside(shards.paths[i], TRIES))  # from an earlier command
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a shard may take hours

    gpus = int(ray.cluster_resources().get("GPU", 0))
    cpus = int(ray.cluster_resources()["CPU"])
    rows = ray.data.range(len(missing), override_num_blocks=len(missing))  # a dead worker costs one shard
    made = rows.map_batches(
        _RayActor,
        fn_constructor_args=(shards, missing),
        batch_size=1,
        # One shard at a time per actor: a long one does not keep others waiting behind it.
        compute=ray.data.ActorPoolStrategy(
            size=min(gpus or max(cpus - 1, 1), len(missing)), max_tasks_in_flight_per_actor=1
        ),
        num_gpus=1 if gpus else None,
        num_cpus=1,
    )
    name = shards.paths[0].parent.name
    for row in tqdm(made.iter_rows(), desc=name, total=len(missing), unit="shard", leave=False):
        if row["reason"]:
            raise ValueError(row["reason"])

    left = shards.missing()
    if left:
        path = shards.paths[left[0]]
        raise ValueError(f"{path}: a worker made it, but it is not here; all machines must share the folder")


class _RayActor:
    """Worker of the cluster, which makes shards."""

    def __init__(self, shards: Shards, missing: list[int]) -> None:
        self.shards = shards
        self.missing = missing

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Makes shards; returns the reason why each could not be made, empty if it was."""
        return {"reason": [self._make(self.missing[place]) for place in batch["id"]]}

    def _make(self, number: int) -> str:
        path = self.shards.paths[number]
        tries = beside(path, TRIES)
        reason = ""
        try:
            if is_whole_shard(path):  # its worker died after writing it, before reporting it
                return reason
            remove(path)  # an incomplete one
            died = _count_in(tries)
            if died == MAX_TRIES:
                raise ValueError(f"{path}: {MAX_TRIES} workers died while making it, perhaps out of memory")
            tries.write_text(str(died + 1))
            make_shard(self.shards, number)
        except ValueError as error:  # wrong data or settings: the message says all
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"

        remove(tries)
        return reason


def _count_in(tries: AnyPath) -> int:
    try:
        return int(tries.read_bytes())
    except (FileNotFoundError, ValueError):  # a full disk may leave it empty
        return 0


ENGINES: dict[str, Engine] = {"processes": run_in_processes, "ray": run_on_ray}
_chosen: ContextVar[Engine] = ContextVar("engine", default=run_in_processes)


def engine() -> Engine:
    """The engine in use for stages."""
    return _chosen.get()


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Makes stages within the block with the engine of this name in `ENGINES`."""
    before = _chosen.set(ENGINES[name])
    try:
        yield
    finally:
        _chosen.reset(before)
