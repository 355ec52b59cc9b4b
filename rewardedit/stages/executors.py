"""Who makes the shards of a stage: the processes that a launcher started together, or a Ray cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewardedit.extras import install_command
from rewardedit.files import AnyPath, remove, replaced, sizes, write_json
from rewardedit.language.usage import usage_kept
from rewardedit.processes import processes
from rewardedit.stages.leases import Claims
from rewardedit.untrusted import read_json_file

LONGEST_NAP = 0.5  # seconds between two looks at what other processes have made
TRIES = 3  # of a shard whose workers die
# Endings of hidden files beside a shard: what endpoints were asked for it, and the bytes of its files.
USED = ".usage"
SIZES = ".sizes"
Make = Callable[[int, Path], None]


@dataclass(frozen=True)
class Shards:
    """The shards that a stage is to make."""

    make: Make  # writes a shard, by its number, to a path that it is given
    paths: list[AnyPath]  # of all shards of the stage
    numbers: Sequence[int]  # of those that are to be made now
    is_whole: Callable[[], bool]  # True where others have ended the stage and perhaps removed its shards
    seen: set[int] = field(default_factory=set)  # the numbers of those that were found whole

    def missing(self) -> list[int]:
        """The numbers of those that are not there, or not whole."""
        try:
            found = {path.name for path in self.paths[0].parent.iterdir()} if self.paths else set()
        except FileNotFoundError:  # the stage is over, and its folder gone
            return []
        there = [i for i in self.numbers if self.paths[i].name in found and i not in self.seen]
        self.seen.update(i for i in there if is_whole_shard(self.paths[i]))
        return [i for i in self.numbers if self.paths[i].name not in found or i not in self.seen]


Engine = Callable[[Shards], None]


class Nap:
    """Sleeps, each time longer up to `LONGEST_NAP`."""

    def __init__(self) -> None:
        self.seconds = 0.02

    def __call__(self) -> None:
        time.sleep(self.seconds)
        self.seconds = min(1.5 * self.seconds, LONGEST_NAP)


def by_processes(shards: Shards) -> None:
    """Makes the shards with all processes that run this same command, on any machines with the folder.

    Process r of n begins with its own, r, r + n, …, and goes on with those that no other has begun, so that
    late ones find their part and what a dead one had begun is made by another. It returns when all are there.
    """
    state = processes()
    own = list(shards.numbers[state.process_index :: state.num_processes])
    others = sorted(set(shards.numbers) - set(own), reverse=True)  # their owners come from the other end
    claims = Claims()
    nap = Nap()
    while True:
        missing = set(shards.missing())
        if not missing or shards.is_whole():
            return
        todo = [i for i in (*own, *others) if i in missing]
        made = 0
        name = shards.paths[0].parent.name
        quiet = not state.is_main_process
        for i in tqdm(todo, desc=name, unit="shard", disable=quiet, leave=False):
            if shards.is_whole():
                return
            path = shards.paths[i]
            with claims.claim(path) as granted:
                if granted and not is_whole_shard(path) and not shards.is_whole():
                    remove(path)  # one that is short
                    make_shard(shards, i, partial(claims.is_held, path))
                    made += 1
        if not made:
            nap()


class _Overtaken(Exception):
    """Others took this process for dead, and make the shard or have ended the stage meanwhile."""


def make_shard(shards: Shards, number: int, is_held: Callable[[], bool] = lambda: True) -> None:
    """Makes one shard, which is there whole or not at all; nothing where others have ended the stage
    meanwhile. What endpoints were asked for it, and its sizes, stand beside it before it is there itself.

    Args:
        is_held: True while this process is the one that is to make it.
    """
    path = shards.paths[number]
    try:
        with replaced(path, in_stage=True) as aside:
            with usage_kept(beside(path, USED)):
                shards.make(number, aside)
            if shards.is_whole() or not is_held():
                raise _Overtaken
            if isinstance(path, Path):
                write_json(beside(path, SIZES), sizes(aside), in_stage=True)
    except _Overtaken:
        return
    except Exception:
        if (
            is_held() and not shards.is_whole()
        ):  # those who went on would have cleared away what was half made
            raise


def beside(path: AnyPath, end: str) -> AnyPath:
    """A hidden file that says something of a shard."""
    return path.with_name(f".{path.name}{end}")


def is_whole_shard(path: AnyPath) -> bool:
    """True for a shard that is there with the sizes that it was made in: a power cut may leave an empty or a
    short one. Of one without a note of its sizes, as earlier versions left it, some bytes are enough.
    """
    if not isinstance(path, Path):
        return path.exists()
    try:
        there = sizes(path)
    except FileNotFoundError:
        return False
    try:
        return read_json_file(beside(path, SIZES)) == there
    except FileNotFoundError:
        return any(there.values())
    except ValueError:  # a note that is damaged itself
        return False


def by_ray(shards: Shards) -> None:
    """Makes the shards with Ray Data, on the cluster that RAY_ADDRESS names or that runs here.

    Every actor holds the models once: one for each GPU, or for each CPU but one, which reads and schedules.
    A shard whose worker dies is given to another, at most `TRIES` in all. All machines share the folder, the
    data and the cache of the hub.

    Raises:
        ValueError: where Ray is missing, where a shard cannot be made, or where the machines do not share the
            folder.
        RuntimeError: where several processes were launched.
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
        remove(_tries_of(shards.paths[i]))  # of an earlier command
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
        # One shard at a time each: a long one does not keep others waiting behind it.
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
        raise ValueError(f"{path}: a worker made it, and it is not here; all machines must share the folder")


class _RayActor:
    """What a worker of the cluster runs."""

    def __init__(self, shards: Shards, missing: list[int]) -> None:
        self.shards = shards
        self.missing = missing

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Makes shards; why one cannot be made, empty where it is there."""
        return {"reason": [self._make(self.missing[place]) for place in batch["id"]]}

    def _make(self, number: int) -> str:
        path = self.shards.paths[number]
        tries = _tries_of(path)
        reason = ""
        try:
            if is_whole_shard(path):  # its worker died between writing it and saying so
                return reason
            remove(path)  # one that is short
            died = _count_in(tries)
            if died == TRIES:
                raise ValueError(
                    f"{path}: {TRIES} workers died while they made it, perhaps for want of memory"
                )
            tries.write_text(str(died + 1))
            make_shard(self.shards, number)
        except ValueError as error:  # what is wrong with the data or the settings, in its own words
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


def _tries_of(path: AnyPath) -> AnyPath:
    """How often workers have begun a shard, of whom none has come to an end."""
    return path.with_name(f".{path.name}.tries")


ENGINES: dict[str, Engine] = {"processes": by_processes, "ray": by_ray}
_chosen: ContextVar[Engine] = ContextVar("engine", default=by_processes)


def engine() -> Engine:
    """The engine that stages are made with here."""
    return _chosen.get()


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Stages within the block are made with the engine of this name, of `ENGINES`."""
    before = _chosen.set(ENGINES[name])
    try:
        yield
    finally:
        _chosen.reset(before)
