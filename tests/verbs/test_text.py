"""``ch`` on text: train, resume, test, transform and search, with models of ours and of others."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from warm import python

from chop.cli import main
from chop.dataset import MaseDataModule
from chop.models import get_model
from chop.training.metrics import TokenEvaluation, evaluate_model, perplexity

try:
    import transformers
except ImportError:
    transformers = None  # type: ignore[assignment]
needs_transformers = pytest.mark.skipif(
    transformers is None, reason="the extra text (transformers) is not installed"
)
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "vocab_size": 64, "max_position_embeddings": 32,
}  # fmt: skip
INTEGER = {"data_in_width": 10, "data_in_frac_width": 6}


def ch(folder: Path, action: str, model: str, data: str, *more: str) -> int:
    task = "lm" if data.endswith("lm") else "cls"
    return main(
        [
            action, model, data, "--task", task, "--batch-size", "128", "--accelerator", "cpu",
            "--project-dir", str(folder), "--project", "run", "--quiet",
            *(["--report-to", "none"] if action in ("train", "test") else []), *more,
        ]
    )  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "run" / "software" / "training_ckpts" / "last.ckpt"
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return state


def test_results(folder: Path) -> dict[str, Any]:
    path = folder / "run" / "software" / "checkpoints" / "test_results.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


test_results.__test__ = False  # type: ignore[attr-defined]


def saved(folder: Path, kind: str) -> Path:
    config = getattr(transformers, f"{kind}Config")(**SMALL, hidden_dropout_prob=0.1)
    config.save_pretrained(folder / kind)
    return folder / kind


def resumed(tmp_path: Path, model: str, data: str) -> None:
    """Train in one go and in two parts, and compare."""
    steps = ("--learning-rate", "1e-2", "--max-steps")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert ch(whole, "train", model, data, *steps, "4") == 0
    assert ch(parts, "train", model, data, *steps, "2") == 0
    torch.manual_seed(5)
    assert ch(parts, "train", model, data, *steps, "4", "--resume") == 0
    one, other = weights(whole), weights(parts)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "data"), [("Bert", "agreement"), ("Llama", "agreement-lm")], ids=["cls", "lm"]
)
def test_models_of_transformers_train_resume_and_are_tested(
    kind: str, data: str, tmp_path: Path
) -> None:
    model = f"hf:{saved(tmp_path, kind)}"
    resumed(tmp_path, model, data)
    best = tmp_path / "whole" / "run" / "software" / "training_ckpts" / "best.ckpt"
    whole = tmp_path / "whole"
    assert ch(whole, "test", model, data, "--load", str(best), "--load-type", "pl") == 0
    found = test_results(whole)
    assert 0 < found["test_acc_epoch"] < 1
    assert ("test_perplexity_epoch" in found) == (data == "agreement-lm")


QUANTISE = """
[passes.quantize]
by = "type"
[passes.quantize.default.config]
name = "NA"
[passes.quantize.linear.config]
name = "integer"
data_in_width = 10
data_in_frac_width = 6
weight_width = 8
weight_frac_width = 5
[passes.quantize.scaled_dot_product_attention.config]
name = "integer"
data_in_width = 10
data_in_frac_width = 6
scores_width = 8
scores_frac_width = 7

[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [6, 10]
data_in_frac_width = [4]
weight_width = [4, 8]
weight_frac_width = ["NA"]
[search.strategy]
name = "optuna"
[search.strategy.sw_runner.RUNNER]
num_samples = 256
[search.strategy.hw_runner.average_bitwidth]
[search.strategy.setup]
n_trials = 3
[search.strategy.metrics]
METRIC
average_bitwidth = {scale = 1, direction = "minimize"}
"""


@pytest.mark.parametrize(
    ("model", "data"), [("encoder-tiny", "agreement"), ("decoder-tiny", "agreement-lm")]
)
def test_a_transformer_of_ours_goes_through_every_action(
    model: str, data: str, tmp_path: Path
) -> None:
    resumed(tmp_path, model, data)
    folder, lm = tmp_path / "whole", data == "agreement-lm"
    best = str(folder / "run" / "software" / "training_ckpts" / "best.ckpt")
    config = tmp_path / "run.toml"
    metric = "perplexity" if lm else "accuracy"
    direction = "minimize" if lm else "maximize"
    config.write_text(
        QUANTISE.replace("RUNNER", "lm_evaluation" if lm else "basic_evaluation").replace(
            "METRIC", f'{metric} = {{scale = 1, direction = "{direction}"}}'
        )
    )
    load = ("--config", str(config), "--load", best, "--load-type", "pl")
    assert ch(folder, "transform", model, data, *load) == 0
    graph = folder / "run" / "software" / "transform" / "transformed_ckpt"
    assert ch(folder, "test", model, data, "--load", str(graph), "--load-type", "mz") == 0
    found = test_results(folder)
    assert ("test_perplexity_epoch" in found) == lm
    if lm:
        assert found["test_perplexity_epoch"] == pytest.approx(math.exp(found["test_loss_epoch"]))
        assert found["unit"] == "tokens"
        assert "confusion_matrix" not in found
    assert ch(folder, "search", model, data, *load) == 0
    best_file = folder / "run" / "software" / "search_ckpts" / "best.json"
    trial = next(iter(json.loads(best_file.read_text()).values()))
    assert metric in trial["software_metrics"]
    assert main(["report", str(folder / "run"), "--quiet"]) == 0
    page = (folder / "run" / "report.html").read_text()
    assert ("Perplexity" in page) == lm


@needs_transformers
def test_a_configuration_takes_the_place_of_the_named_model(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SMALL, architectures=["BertForSequenceClassification"])
    config.save_pretrained(tmp_path / "bert")
    given = ("--load", str(tmp_path / "bert"), "--load-type", "hf")
    assert ch(tmp_path, "train", "encoder-tiny", "agreement", "--max-steps", "2", *given) == 0
    assert "model.model.bert.pooler.dense.weight" in weights(tmp_path)
    other = transformers.BertConfig(
        **SMALL, pad_token_id=3, architectures=["BertForSequenceClassification"]
    )
    other.save_pretrained(tmp_path / "other")
    given = ("--load", str(tmp_path / "other"), "--load-type", "hf")
    assert ch(tmp_path, "train", "encoder-tiny", "agreement", *given) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["encoder-tiny", "agreement", "--task", "lm"], "is a classifier: task must be 'cls'"),
        (["decoder-tiny", "agreement-lm"], "is a language model: task must be 'lm'"),
        (["decoder-tiny", "agreement", "--task", "lm"], "'agreement' has classes: write task"),
        (["encoder-tiny", "agreement-lm"], "text to be continued: write task 'lm'"),
        (["encoder-tiny", "jsc-sim"], "takes rows of tokens, which this data set has not"),
        (["jsc-tiny", "agreement"], "takes rows of features, which this data set has not"),
        (["hf:./none", "agreement"], "hf:./none: there is no folder ./none"),
        (["bert-base", "agreement"], "unknown model 'bert-base'"),
    ],
)
def test_mistakes_take_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments, "--project-dir", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_perplexity_is_of_the_tokens_that_are_asked_for() -> None:
    data = MaseDataModule("agreement-lm", batch_size=50)
    model = get_model("decoder-tiny", "lm", data.dataset_info)
    batches = [next(iter(data.test_dataloader()))]
    found = evaluate_model(model, batches)
    tokens, labels = batches[0]
    with torch.no_grad():
        scores = torch.log_softmax(model(tokens), -1)
    nats = [
        -float(scores[row, place, label])
        for row, line in enumerate(labels.tolist())
        for place, label in enumerate(line)
        if label >= 0
    ]
    assert isinstance(found, TokenEvaluation)
    assert found.rows == len(nats)
    assert found.perplexity == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)
    assert perplexity(1e4) == math.inf


@pytest.mark.parametrize("kind", ["ours", pytest.param("hf", marks=needs_transformers)])
def test_padding_changes_nothing(kind: str, tmp_path: Path) -> None:
    info = MaseDataModule("agreement", 1).dataset_info
    name = "encoder-tiny" if kind == "ours" else f"hf:{saved(tmp_path, 'Bert')}"
    model = get_model(name, "cls", info).eval()
    row = torch.tensor([[1, 20, 30, 40, 2, 0, 0, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(model(row), model(row[:, :5]))
        assert not torch.equal(model(row), model(row.where(row != 0, torch.tensor(7))))


@needs_transformers
def test_weights_of_a_folder_are_taken_and_new_layers_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = transformers.BertConfig(**SMALL, num_labels=5)
    stored = transformers.BertForSequenceClassification(config)
    stored.save_pretrained(tmp_path / "bert")
    info = MaseDataModule("agreement", 1).dataset_info
    model = get_model(f"hf:{tmp_path / 'bert'}", "cls", info, pretrained=True)
    ours, theirs = model.model.state_dict(), stored.state_dict()
    other = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    assert other <= {"classifier.weight", "classifier.bias"}
    assert ours["classifier.weight"].shape == (2, 16)
    assert "classifier.weight" in caplog.text
    fresh = get_model(f"hf:{tmp_path / 'bert'}", "cls", info).model.state_dict()
    name = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(fresh[name], theirs[name])


@needs_transformers
def test_a_name_is_looked_for_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    """In a process of its own, as the package of the hub reads its settings once."""
    snapshot = tmp_path / "hub" / "models--some--bert" / "snapshots" / "a"
    snapshot.mkdir(parents=True)
    transformers.BertConfig(**SMALL).save_pretrained(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("a")
    code = (
        "from chop.errors import ConfigError\n"
        "from chop.models import get_model\n"
        "from chop.models.info import DataShape\n"
        "data = DataShape(16, 2, vocab_size=50)\n"
        "print(type(get_model('hf:some/bert', 'cls', data).model).__name__)\n"
        "try:\n    get_model('hf:no/such', 'cls', data)\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = python("-c", code, **offline)
    lines = done.stdout.splitlines()
    assert lines[:1] == ["BertForSequenceClassification"], done.stderr[-600:]
    assert lines[1].startswith("hf:no/such: ")
    assert lines[1].endswith("hf:FOLDER names a local one")
