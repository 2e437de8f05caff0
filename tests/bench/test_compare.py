"""Two runs side by side."""

import io
from pathlib import Path

import msgspec
import pytest
from dandelion.bench.records import (
    Axis,
    ExperimentResult,
    Findings,
    Metric,
    Panel,
    Row,
    Unit,
    read_results,
)
from dandelion.bench.report.compare import ChangeVerdict, compare, compare_saved, print_comparison
from rich.console import Console

from dandelion.errors import InvalidInput
from tests.bench.made_results import P50, hostile_result, result, sweep_panel

RATE = Metric("rate", "rate", Unit.PER_SECOND, better="higher")
SIZE = Metric("size", "size", Unit.BYTES, better="")


def run(*rows: Row, key: str = "k") -> ExperimentResult:
    return result(panels=[Panel(key, "t", Axis("x"), (P50, RATE, SIZE), rows)])


def keep(folder: Path, *outcomes: ExperimentResult) -> Path:
    folder.mkdir(exist_ok=True)
    for i, found in enumerate(outcomes):
        (folder / f"{i}.json").write_bytes(msgspec.json.encode(found))
    return folder


@pytest.mark.parametrize(
    ("key", "old", "new", "verdict"),
    [
        ("p50", 100.0, 120.0, ChangeVerdict.WORSE),
        ("p50", 100.0, 80.0, ChangeVerdict.BETTER),
        ("p50", 100.0, 109.0, ChangeVerdict.SAME),
        ("p50", 100.0, 91.0, ChangeVerdict.SAME),
        ("p50", 0.0, 5.0, ChangeVerdict.WORSE),
        ("p50", 0.0, 0.0, ChangeVerdict.SAME),
        ("rate", 100.0, 120.0, ChangeVerdict.BETTER),
        ("rate", 100.0, 80.0, ChangeVerdict.WORSE),
        ("size", 100.0, 120.0, ChangeVerdict.CHANGED),
    ],
)
def test_a_change_is_judged_by_what_is_better(
    key: str, old: float, new: float, verdict: ChangeVerdict
) -> None:
    comparison = compare(run(Row("s", 1.0, {key: old})), run(Row("s", 1.0, {key: new})))
    (change,) = comparison.changes
    assert change.verdict is verdict
    assert (change.old, change.new) == (old, new)
    assert change.ratio == (pytest.approx(new / old) if old else None)


def test_spreads_that_overlap_are_no_change() -> None:
    old = Row("s", 1.0, {"p50": 100.0, "p50_low": 90.0, "p50_high": 125.0})
    new = Row("s", 1.0, {"p50": 130.0, "p50_low": 120.0, "p50_high": 140.0})
    far = Row("s", 1.0, {"p50": 130.0, "p50_low": 126.0, "p50_high": 140.0})
    assert compare(run(old), run(new)).changes[0].verdict is ChangeVerdict.SAME
    assert compare(run(old), run(far)).changes[0].verdict is ChangeVerdict.WORSE


def test_values_of_one_run_only_are_named() -> None:
    comparison = compare(
        run(Row("old", 1.0, {"p50": 1.0}), Row("s", 1.0, {"p50": float("nan")})),
        run(Row("new", 1.0, {"p50": 1.0}), Row("s", 1.0, {"p50": 1.0})),
    )
    verdicts = {c.system: c.verdict for c in comparison.changes}
    assert verdicts == {
        "old": ChangeVerdict.ONLY_OLD,
        "new": ChangeVerdict.ONLY_NEW,
        "s": ChangeVerdict.ONLY_NEW,
    }
    apart = compare(run(Row("s", 1.0, {"p50": 1.0}), key="a"), run(Row("s", 1.0, {"p50": 1.0})))
    assert [c.verdict for c in apart.changes] == [ChangeVerdict.ONLY_NEW, ChangeVerdict.ONLY_OLD]


def test_runs_that_can_hardly_be_compared_say_so() -> None:
    assert not compare(result(), result()).warnings
    assert len(compare(result(), result(quick=True)).warnings) == 1
    other = compare(result(), result(machine_name="epyc"))
    assert len(other.warnings) == 3  # machine, backend, sizes
    changed = msgspec.structs.replace(result(), machine={"cpu": "another"})
    assert len(compare(result(), changed).warnings) == 1


def test_different_experiments_are_refused() -> None:
    with pytest.raises(InvalidInput):
        compare(result("a"), result("b"))


def test_budgets_and_claims_that_turned_are_told() -> None:
    old = result()
    budgets = tuple(
        msgspec.structs.replace(b, passes=False, measured="+99 µs") for b in old.found.budgets
    )
    claims = tuple(msgspec.structs.replace(c, holds=True) for c in old.found.claims)
    found = msgspec.structs.replace(old.found, budgets=budgets, claims=claims)
    verdicts = compare(old, msgspec.structs.replace(old, found=found)).verdicts
    assert len(verdicts) == 3  # one budget fails now, two claims hold now
    assert "+18.2 µs" in verdicts[0]
    assert "+99 µs" in verdicts[0]
    assert not compare(old, old).verdicts


def test_folders_are_paired_by_experiment_and_machine(tmp_path: Path) -> None:
    a = keep(tmp_path / "a", result("x"), result("x", machine_name="epyc"), result("gone"))
    b = keep(tmp_path / "b", result("x", machine_name="epyc"), result("x"), result("more"))
    comparisons, lonely = compare_saved(a, b)
    assert [c.experiment for c in comparisons] == ["x", "x"]
    assert not any(c.warnings for c in comparisons)
    assert len(lonely) == 2
    assert any("gone" in said for said in lonely)
    assert any("more" in said for said in lonely)


def test_one_result_on_either_side_is_compared_across_machines(tmp_path: Path) -> None:
    a = keep(tmp_path / "a", result("x"))
    b = keep(tmp_path / "b", result("x", machine_name="epyc"))
    comparisons, lonely = compare_saved(a, b)
    assert not lonely
    assert comparisons[0].warnings
    from_files, _ = compare_saved(a / "0.json", b / "0.json")
    assert from_files == comparisons


def test_what_is_no_result_is_refused_by_its_path(tmp_path: Path) -> None:
    folder = keep(tmp_path / "a", result("x"))
    (folder / "other.json").write_text('{"benchmark": "another kind"}')
    assert len(read_results(folder)) == 1
    bad = folder / "bad.json"
    for text in ('{"experiment": 1}', "{", "\udcff"):
        bad.write_bytes(text.encode(errors="surrogateescape"))
        for path in (folder, bad):
            with pytest.raises(InvalidInput) as caught:
                read_results(path)
            assert caught.value.where == str(bad)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidInput):
            read_results(path)


def test_a_saved_result_is_the_same_when_read(tmp_path: Path) -> None:
    folder = keep(tmp_path / "a", result("x", [sweep_panel()]))
    assert read_results(folder) == [result("x", [sweep_panel()])]


def test_a_comparison_is_printed_with_old_new_and_ratio() -> None:
    console = Console(file=io.StringIO(), width=160)
    old, new = run(Row("s", 1.0, {"p50": 100.0})), run(Row("s", 1.0, {"p50": 150.0}))
    print_comparison(compare(old, msgspec.structs.replace(new, quick=True)), console)
    print_comparison(compare(hostile_result(), hostile_result()), console)
    empty = msgspec.structs.replace(old, found=Findings(()))
    print_comparison(compare(empty, empty), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for expected in ("100 µs", "150 µs", "1.5x", "1 worse", "NOT COMPARABLE", "quick"):
        assert expected in text
    assert "\x1b" not in text
