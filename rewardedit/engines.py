"""Who makes the shards of a stage: the processes that a launcher started together, or a Ray cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rewardedit.claims import Claims, writer_name
from rewardedit.files import AnyPath, remove, replaced
from rewardedit.processes import processes

LONGEST_NAP = 0.5  # seconds between two looks at what other processes have made
TRIES = 3  # workers that may die of one shard
Make = Callable[[int, Path], None]


@dataclass(frozen=True)
class Shards:
    """The shards that a stage is to make."""

    make: Make  # writes a shard, by its number, to a path that it is given
    paths: list[AnyPath]  # of all shards of the stage
    numbers: Sequence[int]  # of those that are to be made now
    is_whole: Callable[[], bool]  # True where others have ended the stage, and perhaps removed its shards

    def missing(self) -> list[int]:
        """The numbers of those that are not there."""
        if not self.paths:
            return []
        found = {path.name for path in self.paths[0].parent.iterdir()}
        return [i for i in self.numbers if self.paths[i].name not in found]


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
            with claims.claim(shards.paths[i]) as granted:
                if granted and not shards.paths[i].exists() and not shards.is_whole():
                    make_shard(shards.make, i, shards.paths[i])
                    made += 1
        if not made:
            nap()


def make_shard(make: Make, number: int, path: AnyPath) -> None:
    """Makes one shard, which is there whole or not at all."""
    with replaced(path, writer_name()) as aside:
        make(number, aside)


def by_ray(shards: Shards) -> None:
    """Makes the shards with Ray Data, on the cluster that RAY_ADDRESS names or that runs here.

    Every actor holds the models once: one for each GPU, or for each CPU but one, which reads and schedules.
    A shard whose worker dies is given to another, at most `TRIES` in all.

    Raises:
        ValueError: where Ray is missing, where a shard cannot be made, or where the machines do not share the
            folder.
        RuntimeError: where several processes were launched.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError('engine ray: pip install "rewardedit[ray]"') from error
    if processes().num_processes > 1:
        raise RuntimeError("engine ray: start the command once; Ray starts the workers")
    missing = shards.missing()
    if not missing:
        return
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
        fn_constructor_args=(shards.make, [(i, shards.paths[i]) for i in missing]),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(gpus or max(cpus - 1, 1), len(missing))),
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

    def __init__(self, make: Make, shards: list[tuple[int, AnyPath]]) -> None:
        self.make = make
        self.shards = shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        reasons = []
        for place in batch["id"]:
            number, path = self.shards[place]
            reason = ""
            try:
                if not path.exists():  # it is, where a worker died between writing it and saying so
                    _count_try(path)
                    make_shard(self.make, number, path)
            except ValueError as error:  # what is wrong with the data or the settings, in its own words
                reason = str(error)
            reasons.append(reason)
        return {"reason": reasons}


def _count_try(path: AnyPath) -> None:
    """Raises ValueError where workers have died of this shard `TRIES` times: Ray itself would go on."""
    file = path.with_name(f".{path.name}.tries")
    tries = int(file.read_text()) if file.exists() else 0
    if tries == TRIES:
        remove(file)
        raise ValueError(f"{path}: {TRIES} workers died while they made it, perhaps for want of memory")
    file.write_text(str(tries + 1))


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
