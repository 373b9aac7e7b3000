"""`ch search`: what it prints and writes, and that others can reproduce it."""

import copy
import json
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from warm import python

from chop.actions import search
from chop.cli import main
from chop.config.layers import read_toml
from chop.dataset import MaseDataModule
from chop.errors import ChopError, ConfigError, OutputError
from chop.models import get_model, get_model_info
from chop.runs import own_folder

CONFIGS = Path(__file__).parents[2] / "configs" / "examples"
EXAMPLE = CONFIGS / "jsc_toy_by_type.toml"


@pytest.fixture(scope="module")
def data() -> MaseDataModule:
    module = MaseDataModule("jsc-sim", batch_size=512)
    module.setup()
    return module


@pytest.fixture(scope="module")
def weights(data: MaseDataModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Lightning checkpoint, as training writes it, of a network trained for a few steps."""
    torch.manual_seed(0)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for (features, labels), _ in zip(data.train_dataloader(), range(40), strict=False):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimiser.step()
    path = tmp_path_factory.mktemp("weights") / "best.ckpt"
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state, "pytorch-lightning_version": "2.5.0"}, path)
    return path


def ch(tmp_path: Path, action: str, config: Path, *arguments: str) -> int:
    where = ("--project-dir", str(tmp_path), "--project", "out", "--cpu=0", "--report-to", "none")
    return main([action, "--config", str(config), *where, *arguments])


REEVALUATE = """
import json, sys
import torch
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (add_common_metadata_analysis_pass, init_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass, quantize_transform_pass)
from chop.loading.networks import load_model
from chop.training.metrics import evaluate_model

torch.set_num_threads(1)
data = MaseDataModule("jsc-sim", batch_size=512)
rows = [next(iter(data.val_dataloader()))]
assert len(rows[0][1]) == 512
for entry in json.load(open(sys.argv[1])).values():
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    graph = MaseGraph(load_model(sys.argv[2], "pl", model))
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": rows[0][0]}})
    graph, _ = quantize_transform_pass(graph, {"by": "name", **entry["sampled_config"]})
    result = evaluate_model(graph.model, rows)
    _, bits = calculate_avg_bits_mg_analysis_pass(graph)
    print(json.dumps([result.loss, result.accuracy, bits["w_avg_bit"]]))
"""


def test_the_lab_command_and_a_fresh_process_that_checks_its_front(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ch(tmp_path, "search", EXAMPLE, "--load", str(weights), "--load-type", "pl") == 0
    printed = capsys.readouterr().out
    for line in ("Building search space...", "The search space has 18 configurations",
                 "Search started...", "Best trial(s):", "Searching is completed"):  # fmt: skip
        assert line in printed
    assert printed.count("Best trial(s):") == 1
    assert "UNTRAINED" not in printed
    folder = tmp_path / "out" / "software" / "search_ckpts"
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures == {"front", "metrics", "hypervolume", "importance"}
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    again = python("-c", REEVALUATE, str(folder / "best.json"), str(weights))
    assert again.returncode == 0, again.stderr
    found = [json.loads(line) for line in again.stdout.splitlines() if line.startswith("[")]
    assert len(found) == len(best) > 1
    for (loss, accuracy, bits), entry in zip(found, best.values(), strict=True):
        software, hardware = entry["software_metrics"], entry["hardware_metrics"]
        assert software == {"loss": round(loss, 10), "accuracy": round(accuracy, 10)}
        assert hardware["average_bitwidth"] == round(bits, 10)


def test_ch_transform_makes_the_best_configuration(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--load", str(weights), "--load-type", "pl")
    assert ch(tmp_path, "search", EXAMPLE, *load) == 0
    folder = tmp_path / "out" / "software" / "search_ckpts"
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    assert len(list(folder.glob("best_*.toml"))) == len(best)
    assert read_toml(folder / "best_0.toml")["load_name"] == str(weights)
    assert ch(tmp_path, "transform", folder / "best_0.toml") == 0
    capsys.readouterr()
    from chop.loading.networks import load_model
    from chop.training.metrics import evaluate_model

    saved = load_model(tmp_path / "out" / "software" / "transform" / "transformed_ckpt", "mz")
    data = MaseDataModule("jsc-sim", batch_size=512)
    result = evaluate_model(saved, [next(iter(data.val_dataloader()))])
    entry = best["0"]["software_metrics"]
    assert entry == {"loss": round(result.loss, 10), "accuracy": round(result.accuracy, 10)}


def tables(**setup: Any) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(read_toml(EXAMPLE)["search"])
    found["strategy"]["setup"] |= {"plots": False, **setup}
    found["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = 64
    return found


def run(data: MaseDataModule, folder: Path, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    given = kwargs.pop("search_config", None) or tables(n_trials=5, sampler="random")
    info = get_model_info("jsc-tiny")
    return search(model, info, data, given, save_dir=folder, **kwargs)


def test_search_is_a_function_and_warns_of_untrained_weights(
    data: MaseDataModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tables(n_trials=5, sampler="random")
    before = copy.deepcopy(given)
    result = run(data, tmp_path / "s", search_config=given)
    assert given == before
    assert len(result.trials) == 5
    assert result.space_size == 18
    assert "UNTRAINED" in capsys.readouterr().out


class Stopped(Exception):
    """Raised where a search would start its processes."""


def imports_of_processes(
    data: MaseDataModule, folder: Path, monkeypatch: pytest.MonkeyPatch, **kwargs: Any
) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    def stop(engine: Any, payload: Any) -> None:
        found.append(engine.imports)
        raise Stopped

    monkeypatch.setattr("chop.search.engines.local.Local.start", stop)
    with pytest.raises(Stopped):
        run(data, folder, search_config=tables(n_trials=5, n_jobs=2), **kwargs)
    return found[0]


def test_processes_import_what_the_caller_says_and_not_what_a_file_said(
    data: MaseDataModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = {"imports": ["stranger.py"]}
    own = imports_of_processes(data, tmp_path / "a", monkeypatch, imports=["own.py"], settings=file)
    assert own == ("own.py",)
    assert imports_of_processes(data, tmp_path / "b", monkeypatch, settings=file) == ()


def test_what_was_found_with_code_of_ones_own_says_so(data: MaseDataModule, tmp_path: Path) -> None:
    found = run(data, tmp_path / "s", imports=["own.py"]).folder
    assert read_toml(found / "best_0.toml")["imports"] == ["own.py"]
    assert "imports" not in read_toml(run(data, tmp_path / "t").folder / "best_0.toml")


def test_a_study_is_never_overwritten_and_goes_on_when_asked(
    data: MaseDataModule, tmp_path: Path
) -> None:
    first = run(data, tmp_path / "s")
    second = run(data, tmp_path / "s")
    assert [first.folder.name, second.folder.name] == ["s", "s-v1"]
    more = run(data, tmp_path / "s", resume=True, search_config=tables(n_trials=8, sampler="tpe"))
    assert more.folder == second.folder
    assert len(more.trials) == 8
    assert [t.values for t in more.trials[:5]] == [t.values for t in second.trials]


def test_an_empty_folder_is_taken_as_it_is(data: MaseDataModule, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert run(data, tmp_path / "mine").folder == tmp_path / "mine"
    assert run(data, tmp_path / "mine").folder == tmp_path / "mine-v1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-v1"]


def test_of_searches_that_start_together_one_gets_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: own_folder(tmp_path / "mine", "study.log"), range(8)))
    assert len(set(found)) == 8
    assert tmp_path / "mine" in found


@pytest.mark.parametrize("storage", [None, "sqlite:///{}/study.db"])
@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize(
    "refusal", ["chop.verbs.search.job.make_space", "chop.search.proposals.check_size"]
)
def test_a_search_that_cannot_begin_leaves_nothing_behind(
    refusal: str,
    was_there: bool,
    storage: str | None,
    data: MaseDataModule,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConfigError("no way")

    monkeypatch.setattr(refusal, refuse)
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    if not was_there:
        (folder / "something").touch()  # so that the search goes to mine-v1
    setup = {"storage": storage.format(tmp_path)} if storage else {}
    with pytest.raises(ConfigError, match="no way"):
        run(data, folder, search_config=tables(n_trials=5, **setup))
    left = sorted(path.relative_to(folder.parent) for path in folder.parent.rglob("*"))
    assert left == [Path("mine")] + ([] if was_there else [Path("mine/something")])


def test_a_study_of_another_model_is_not_mixed_in(data: MaseDataModule, tmp_path: Path) -> None:
    run(data, tmp_path / "s")
    other = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    with pytest.raises(ChopError, match="another set of weights"):
        search(other, get_model_info("jsc-tiny"), data, tables(), save_dir=tmp_path / "s",
               resume=True)  # fmt: skip


def test_a_summed_search_reports_one_trial(data: MaseDataModule, tmp_path: Path) -> None:
    given = tables(n_trials=6, sampler="tpe", sum_scaled_metrics=True, direction="maximize")
    result = run(data, tmp_path / "s", search_config=given)
    (best,) = result.best
    scaled = best.user_attrs["scaled_metrics"]
    assert best.values == [sum(scaled.values())]
    entry = json.loads((tmp_path / "s" / "best.json").read_text(encoding="utf-8"))["0"]
    assert entry["value"] == round(best.values[0], 10)


def test_two_processes_share_a_search(data: MaseDataModule, tmp_path: Path) -> None:
    given = tables(n_jobs=2, sampler="brute")
    alone = run(data, tmp_path / "alone", search_config=tables(sampler="brute"))
    result = run(data, tmp_path / "s", search_config=given)
    by_key = {t.user_attrs["key"]: t.values for t in alone.trials}
    assert {t.user_attrs["key"]: t.values for t in result.trials} == by_key


def test_every_trial_that_fails_is_an_error_with_the_reason(
    data: MaseDataModule, tmp_path: Path
) -> None:
    given = tables(n_trials=3, sampler="random")
    given["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = 10**9
    with pytest.raises(ChopError, match="every trial failed; the first: DataError: num_samples"):
        run(data, tmp_path / "s", search_config=given)


def test_the_brute_force_example_takes_every_configuration_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ch(tmp_path, "search", CONFIGS / "jsc_new_by_type_brute.toml") == 0
    printed = capsys.readouterr().out
    assert "18 distinct configurations of 18 were evaluated, 0 of them failed" in printed
    assert "UNTRAINED" in printed
    folder = tmp_path / "out" / "software" / "search_ckpts"
    log = json.loads((folder / "log.json").read_text(encoding="utf-8"))
    configs = {json.dumps(each["user_attrs_sampled_config"], sort_keys=True)
               for each in log.values()}  # fmt: skip
    assert len(configs) == len(log) == 18
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    worse = [(-row["values_0"], row["values_1"]) for row in log.values()]
    for entry in best.values():
        accuracy, width = entry["value"]
        better = [p for p in worse if p[0] <= -accuracy and p[1] <= width]
        assert set(better) == {(-accuracy, width)}


def test_a_full_disk_is_told_with_every_file(data: MaseDataModule, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: each of these is longer."""
    tables = read_toml(EXAMPLE)["search"]
    tables["strategy"]["setup"] |= {"sampler": "random", "n_trials": 18, "plots": False}
    tables["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = 64
    info = get_model_info("jsc-tiny")
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OutputError) as caught:
            search(model, info, data, tables, save_dir=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    line = str(caught.value)
    for name in ("study.log", "log.json", "best.json"):
        assert f"{tmp_path / 'out' / name}" in line
    assert "the trials in it are intact" in line
    assert (tmp_path / "out" / "study.log").read_bytes().endswith(b"}\n")
    assert (tmp_path / "out" / "search.json").is_file()  # which comes later and has room
    assert not list(tmp_path.rglob("*.tmp"))
