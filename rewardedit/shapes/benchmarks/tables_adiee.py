"""Tables of ADIEE's scorer and of its training data."""

from typing import Any

from table_parts import Result, interval, markdown, measured

RULES = {
    "source": "the source → 0",
    "augmented_source": "the source, augmented → 0",
    "another_image": "another row's picture → 0",
    "another_instruction": "the target, or an output near it, under another instruction → 0",
    "another_object": "either under its instruction for another object → 0",
    "another_word": "either under its instruction with a word altered → 0",
    "damaged_target": "the target, damaged → 0 to 9 by the damage",
    "unreached": "a method's output → 10 to 0 by how far it is from the target",
    "left_behind": "a method's output where what was to move is still there → 0",
    "untouched": "a method's output that changes next to nothing → 0",
    "output_another_instruction": "a method's output under another instruction → 0",
    "no_progress": "CLIP-D ≤ 0 → 0",
    "unlike_target": "unlike the target by two encoders → 0",
    "weak_method": "a weak method's output → 0",
    "partly_done": "a strong method's output, low CLIP-D → 5",
    "target": "the target → 10",
    "turns_none": "turns: none done → 0",
    "turns_some": "turns: some done → their share",
    "turns_too_many": "turns: more done than asked → 5",
    "turns_all": "turns: all done → 10",
    "another_turn": "a turn under a later one's instruction → 0",
}


RULES_HEAD = ("rule", "rows", "oracle mean", "label within 2.5 of it")


SCORERS = {
    "adiee": "**`adiee`**",
    "same_labels": "ViFi-CLIP with a head, on all of its rows",
    "shapes-vlm": "`shapes/vlm`, that it starts from, by its own yes",
}


CHECKS = {
    "true_edits": "true edits",
    "untouched_sources": "untouched sources",
    "source_and_edit_exchanged": "true edits the wrong way round",
    "other_instructions": "true edits under other rows' instructions",
}


def adiee_data(result: Result) -> str:
    """Number of rows, the oracle's mean and the share of labels within 2.5 of it, by rule and by method."""
    outputs = result["methods"]
    kept = ", ".join(f"{name} {method['kept']:,}" for name, method in outputs.items())
    true, shuffled = (
        f"5 over 0 among outputs of methods {interval(of['ci95_5_over_0'])}, "
        f"10 over outputs of strong methods {interval(of['ci95_10_over_5'])}"
        for of in (result, result["shuffled"])
    )
    seen, plain = (100 * probe["accuracy"] for probe in result["probe"].values())
    below = [
        f"{result['rows']:,} rows in {result['minutes']:.0f} minutes, of them",
        f"{sum(m['kept'] for m in outputs.values()):,} outputs of methods ({kept}).",
        f"The oracle's rating by label, 95 % intervals: {true};",
        f"with labels shuffled within a method: {shuffled}.",
        f"Turns: ρ = {result['turns_spearman']['rho']:.2f}.",
        "A linear probe that sees high frequencies alone tells labels of 0, between and of 10 apart in",
        f"{seen:.0f} % of cases (chance 33 %); where no source, target or turn went through the autoencoder,",
        f"in {plain:.0f} %.",
        measured(result),
    ]
    return markdown(RULES_HEAD, _by_rule(result), " ".join(below))


GRADED = {
    "damage_spearman": "damaged targets",
    "unreached_spearman": "outputs that are compared with targets",
}


def adiee_graded(result: Result) -> str:
    """Number of rows, the oracle's mean and the share of labels within 2.5 of it, by rule and by kind of
    damage or method.
    """
    graded = [
        f"over {words} ρ = {result[name]['rho']:.2f} {interval(result[name]['ci95'])}"
        for name, words in GRADED.items()
        if name in result
    ]
    below = (
        f"{result['rows']:,} rows in {result['minutes']:.0f} minutes. The labels' rank correlation with the "
        f"oracle's ratings: {', '.join(graded)}. {measured(result)}"
    )
    return markdown(RULES_HEAD, _by_rule(result), below)


def _by_rule(result: Result) -> list[tuple[str, ...]]:
    rows = []
    for rule, words in RULES.items():
        for name, record in result["rules"].items():
            if name.split(", ")[0] == rule:
                of_method = ", ".join(name.split(", ")[1:])
                rows.append((f"– {of_method}" if of_method else words, f"{record['n']:,}", *_rated(record)))
    return rows


def _rated(record: Result) -> tuple[str, str]:
    if record["oracle_mean"] is None:  # the oracle knows no truth of such a row
        return "–", "–"
    return f"{record['oracle_mean']:.2f}", f"{100 * record['agree']:.0f} %"


def vlm(result: Result) -> str:
    """Accuracy of the small vision-language model's answers, by task."""
    words = {
        "caption": "the caption of an image",
        "second_caption": "the caption of the second of two images",
        "instruction": "the instruction that leads from the first to the second",
        "result": "the caption of what an instruction makes of an image that is not shown",
        "choice": "which of two instructions for the same source was followed (share of choices)",
        "match": "whether one was followed: that one above another for the same source",
        "altered": "that one above itself with one word altered",
    }
    rows = [(answer, f"{100 * result['right'][task]:.1f} %") for task, answer in words.items()]
    n = f"n = {result['n']} val samples; the last phase took {result['minutes']:.0f} minutes"
    return markdown(("answer", "tokens right"), rows, f"{n}. {measured(result)}")


def adiee(result: Result) -> str:
    """Rank correlation and pairwise accuracy of every scorer, on editors unseen and seen."""
    unseen, own_margins, seen = result, result["own_margins"], result["seen"]
    columns = [of["pairwise"] for of in (unseen, own_margins, seen)]
    columns += [of["unequal_pairwise"] for of in (unseen, seen)]

    def shares(name: str) -> list[str]:
        return [f"{100 * column[name]:.1f} %" if name in column else "" for column in columns]

    names = sorted(unseen["spearman"], key=lambda name: -unseen["spearman"][name])
    rows = [
        (
            SCORERS.get(name, f"`{name}`"),
            f"{unseen['spearman'][name]:.2f}",
            interval(unseen["ci95_vs"][name]) if name != "adiee" else "",
            f"{seen['spearman'][name]:.2f}",
            *shares(name),
        )
        for name in names
    ]
    rows += [(name, "", "", "", *shares(name)) for name in ("always a tie", "random")]
    head = (
        "scorer",
        "ρ, unseen editors",
        "adiee above it",
        "ρ, seen",
        "pairs, unseen",
        "the same, own margins",
        "pairs, seen",
        "unequal pairs, unseen",
        "unequal pairs, seen",
    )
    rivals = ", ".join(
        f"{where} `{of['best_rival_pairwise']}` {interval(of['ci95_pairwise_vs_best_rival'])}"
        for where, of in (("unseen editors", unseen), ("own margins", own_margins), ("seen editors", seen))
    )
    means = ", ".join(f"{words} {result['checks'][name]:.2f}" for name, words in CHECKS.items())
    below = (
        f"n = {unseen['n']:,} edits by unseen editors and {seen['n']:,} by seen ones; "
        f"{unseen['pairs']:,} and {seen['pairs']:,} pairs, of which {unseen['unequal_pairs']:,} and "
        f"{seen['unequal_pairs']:,} are no tie. The best rival on val is `{result['best_rival']}`; in pairs, "
        f"with the interval of adiee's share above its: {rivals}. Its mean score of {means}; the spread of "
        f"its four questions about true edits: {result['checks']['spread_of_questions']:.2f}. "
        f"{measured(result)}"
    )
    return markdown(head, rows, below)


def model_or_data(result: Result) -> str:
    """Rank correlation of the ADIEE scorer, of ViFi-CLIP on the same rows, and of ViFi-CLIP itself."""
    words = {
        "adiee": "`adiee`",
        "same_labels": SCORERS["same_labels"],
        "vifi_clip": "`vifi_clip`, which has seen no label",
    }
    rows = [
        (
            words[name],
            *rank_correlations(record),
            interval(result["adiee_above"][name]) if name in result["adiee_above"] else "",
        )
        for name, record in result["spearman"].items()
    ]
    below = f"n = {result['n']:,} edits by unseen editors. {measured(result)}"
    return markdown(("scorer", "ρ", "ρ within an editor's edits", "adiee above it"), rows, below)


def adiee_ablations(result: Result) -> str:
    """Rank correlation of variants that were trained on a third of the sources."""
    rows = [
        (name, f"{record['rows']:,}", *rank_correlations(record))
        for name, record in result["spearman"].items()
    ]
    below = (
        f"n = {result['n']:,} edits by unseen editors; {result['steps']} steps each, on a third of the "
        f"sources. {measured(result)}"
    )
    return markdown(("variant", "rows", "ρ", "ρ within an editor's edits"), rows, below)


def vifi_rows(result: Result) -> str:
    """Rank correlation of ViFi-CLIP by the amount of its training data."""
    rows = [(name, *rank_correlations(record)) for name, record in result["spearman"].items()]
    below = f"n = {result['n']:,} edits by unseen editors. {measured(result)}"
    return markdown(("ViFi-CLIP", "ρ", "ρ within an editor's edits"), rows, below)


def rank_correlations(record: dict[str, Any]) -> tuple[str, str]:
    """Over all editors' edits, and the mean over editors."""
    if record["rho"] is None:
        return "– (one score for all)", "–"
    return f"{record['rho']:.2f} {interval(record['ci95'])}", f"{record['within_editors']:.2f}"
