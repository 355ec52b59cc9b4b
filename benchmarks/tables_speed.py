"""Tables of speed, memory and robustness, and of the code itself."""

from table_parts import Result, markdown, measured, where

KILLED = {
    "candidates": "candidates",
    "relabelled": "scores and labels (relabel)",
    "cache": "latents (cache)",
    "methods": "edits of one method",
    "measured": "what is measured of them",
    "rows": "labelled rows",
    "pipeline": "training",
    "relabel": "`rewardedit relabel`",
    "score": "`rewardedit score`",
    "shards": "shares of a relabelling",
    "share": "`rewardedit push`",
    "adiee_data": "all of `adiee_data`",
    "adiee_scorer": "all of `adiee_scorer`",
    "refl": "all of `refl`",
}


def throughput(result: Result) -> str:
    """Milliseconds per edit: one by one, in batches, and candidates with and without `prepare`."""
    costs = result["milliseconds_per_edit"]
    ways = [way for way in next(iter(costs.values())) if way not in ("pixels", "batch")]
    rows = [
        (f"`{name}`", str(cost["pixels"]), *(f"{cost[way]:.2f}" for way in ways))
        for name, cost in costs.items()
    ]
    return markdown(("ms an edit", "pixels", *ways), rows, measured(result))


def prefix(result: Result) -> str:
    """Time and peak memory of complete passes and of passes that share the source's prefix."""
    rows = []
    for record in (value for value in result.values() if isinstance(value, dict) and "gradient" in value):
        tokens = f"{record['source_tokens']:,} + {record['candidate_tokens']:,}"
        for what in record.keys() - {"source_tokens", "candidate_tokens"}:
            one = record[what]
            each = (
                f"{one[way]['seconds']:.3f} / {1024 * one[way]['gib']:.0f}" for way in ("whole", "sharing")
            )
            gain = f"{one['speedup']:.2f}×"
            rows.append((tokens, what, *each, gain, f"{one['memory_share']:.2f}×"))
    rows.sort(key=lambda row: (row[0], not row[1].isdigit(), int(row[1]) if row[1].isdigit() else 0))
    head = ("tokens, source + edit", "candidates", "whole, s / MiB", "sharing, s / MiB", "faster", "memory")
    return markdown(head, rows, measured(result))


def refl_step(result: Result) -> str:
    """Cost of a step, compared with a plain version of the papers' loop."""
    parts = list(next(iter(result["steps"].values()))["ours"]["milliseconds"])
    rows = [
        (
            f"{size}: {way}",
            f"{record['samples_per_second']:.1f}",
            f"{record['peak_gib']:.2f}",
            *(f"{record['milliseconds'][part]:.0f}" for part in parts),
        )
        for size, ways in result["steps"].items()
        for way, record in ways.items()
    ]
    head = ("", "samples/s", "peak GiB", *(f"{part}, ms" for part in parts))
    return markdown(head, rows, measured(result))


def speed_cpu(result: Result) -> str:
    """Time of what a user would run instead over ours, our memory and share of the CPU's limit, by path."""
    rows = []
    for path, record in sorted(result["paths"].items()):
        memory = f"{record['mib']:.0f} / {record['mib_plain']:.0f}" if "mib" in record else "–"
        share = f"{100 * record['limit_share']:.0f} %" if "limit_share" in record else "–"
        time = (f"{record['ratio']:.2f}×", f"± {record['spread']:.2f}", str(record["n"]))
        rows.append((path, *time, memory, share))
    head = ("path", "faster", "spread", "pairs", "MiB, ours / other", "of the matrix limit")
    return markdown(head, rows, measured(result))


def startup(result: Result) -> str:
    """CPU seconds of short commands, before and after."""
    seconds = result["cpu_seconds"]
    columns = {name: words for name, words in (("before", "before"), ("after", "now")) if name in seconds}
    rows = [
        (f"`{command}`", *(f"{seconds[name][command]:.2f}" for name in columns))
        for command in seconds["after"]
    ]
    earlier = f"Before is commit {result['before'][:7]}. " if "before" in seconds else ""
    medians = f"Medians of {result['n']} runs, the training's of one."
    head = ("command", *(f"{words}, CPU s" for words in columns.values()))
    return markdown(head, rows, f"{medians} {earlier}{where(result)}")


def kills(result: Result) -> str:
    """Number of killed and resumed runs that give the same result as an uninterrupted run."""
    rows = []
    for stage, record in result["stages"].items():
        moments = record["moments"]
        between = f"{min(moments):.2f} and {max(moments):.2f} s after its start"
        equal = f"{record['equal']} of {len(moments)}"
        rows.append((KILLED[stage], str(record["killed_in_it"]), between, equal))
    return markdown(("stage", "kills", "between", "equal to the unbroken run"), rows, where(result))


def stops(result: Result) -> str:
    """Number of killed or stopped runs that, once resumed, give the same result as an uninterrupted run."""
    signals = ("SIGKILL", "SIGTERM", "SIGSTOP")
    rows = [
        (
            KILLED[stage],
            *(str(record["signals"][name]) for name in signals),
            f"{record['equal']} of {len(record['moments'])}",
        )
        for stage, record in result["stages"].items()
    ]
    return markdown(("run", *signals, "equal to the unbroken run"), rows, where(result))


def code_metrics(result: Result) -> str:
    """Metrics of the code before and after its restructuring."""
    rows = [
        (name, f"{before:g}", f"{result['after'][name]:g}")
        for name, before in result["before"].items()
        if name != "places"
    ]
    return markdown(("", "before", "after"), rows, where(result))


def suite(result: Result) -> str:
    """Times and results of `make test` and `make faults`."""
    faults = result["faults"]
    passed = f"{result['n']:,} tests pass in {result['seconds']:.0f} s ({result['cpu_seconds']:.0f} CPU s)"
    before = (
        f"{result['n_before']:,} tests of {result['commit_before']} took {result['seconds_before']:.0f} s"
    )
    red = f"{faults['red']} of {faults['planted']} planted faults turn their tests red"
    return (
        f"`make test`: {passed} on two idle cores; {before}. {result['device']}, {result['date']}.\n"
        f"`make faults`: {red}, in {faults['seconds']:.0f} s, {faults['date']}."
    )
