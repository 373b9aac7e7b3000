import io
import re
from pathlib import Path

import pytest

from chop.config.command_line import parse_arguments
from chop.config.layers import GREY, Layers, checked_argument, layers_table, wants_colour
from chop.config.run import REMOVED, RunConfig
from chop.config.verb import flags_of, settings
from chop.errors import ChopError

SEED_ORDER = (
    "task load_name load_type batch_size to_debug log_level report_to seed training_optimizer "
    "trainer_precision learning_rate weight_decay max_epochs max_steps accumulate_grad_batches "
    "log_every_n_steps num_workers num_devices num_nodes accelerator strategy is_to_auto_requeue "
    "disable_dataset_cache is_pretrained project_dir project model dataset"
).split()


def layers(tmp_path: Path, file: str, *arguments: str) -> Layers:
    path = tmp_path / "run.toml"
    path.write_text(file)
    options = parse_arguments(["train", *arguments])
    del options["action"]
    return Layers.read(str(path), options)


def test_the_command_line_beats_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    config = layers(tmp_path, "batch_size = 512\nseed = 42", "--batch-size", "64").config
    assert (config.batch_size, config.seed, config.max_epochs) == (64, 42, 20)


@pytest.mark.parametrize(
    ("name", "in_file", "argument"),
    [
        ("batch_size", "512", "128"),
        ("learning_rate", "0.01", "1e-5"),
        ("seed", "42", "0"),
        ("task", '"cls"', "classification"),
    ],
)
def test_a_given_value_counts_even_if_it_is_the_default(
    tmp_path: Path, name: str, in_file: str, argument: str
) -> None:
    flag = flags_of(settings()[name])[-1]
    given = layers(tmp_path, f"{name} = {in_file}", flag, argument)
    assert getattr(given.config, name) == settings()[name].default
    assert given.command_line == {name: settings()[name].default}


def test_a_flag_of_the_file_can_be_overruled(tmp_path: Path) -> None:
    assert layers(tmp_path, "disable_dataset_cache = true").config.disable_dataset_cache
    overruled = layers(tmp_path, "disable_dataset_cache = true", "--no-disable-dataset-cache")
    assert not overruled.config.disable_dataset_cache


def test_imports_are_those_of_the_command_line(tmp_path: Path) -> None:
    given = layers(tmp_path, 'imports = ["./c.py"]', "--import", "b.py", "--import", "c.py")
    assert given.config.imports == ["b.py", "c.py"]


def test_a_file_alone_imports_nothing(tmp_path: Path) -> None:
    with pytest.raises(ChopError, match="run.toml: imports 'a.py', which would run its code"):
        layers(tmp_path, 'imports = ["a.py"]')
    assert Layers({"imports": ["a.py"]}, {}).config.imports == []


def test_na_means_none_everywhere(tmp_path: Path) -> None:
    file = 'project = "NA"\n[passes.quantize.default.config]\nname = "NA"\nlist = ["NA", 1]'
    config = layers(tmp_path, file, "--load", "NA").config
    assert config.project is None
    assert config.load_name is None
    assert config.passes["quantize"]["default"]["config"] == {"name": None, "list": [None, 1]}


def test_the_seeds_spellings_are_understood(tmp_path: Path) -> None:
    config = layers(tmp_path, 'accelerator = "cuda"\ntrainer_precision = 32').config
    assert (config.accelerator, config.trainer_precision) == ("gpu", "32")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("learnin_rate = 1", "unknown key 'learnin_rate': did you mean 'learning_rate'?"),
        ("batch_size = 'many'", "batch_size: input should be a valid integer (got 'many')"),
        ("batch_size = 1.5", "batch_size: input should be a valid integer (got 1.5)"),
        ("batch_size = 0", "batch_size: input should be greater than 0 (got 0)"),
        ("max_epochs = true", "max_epochs: input should be a valid integer (got True)"),
        ("log_level = 'infos'", "log_level: no choice 'infos': did you mean 'info'?"),
        ("learning_rate = nan", "learning_rate: input should be a finite number (got nan)"),
        ("batch_size = 'NA'", "batch_size: none is not possible; the default is 128"),
        ("passes = 3", "passes: input should be a valid dictionary (got 3)"),
        ("imports = 'a.py'", "imports: input should be a valid list (got 'a.py')"),
        ("seed = 1\nseed = 2", "not valid TOML: Cannot overwrite a value"),
        ("[", "not valid TOML"),
        *[(f"{name} = 1", f"{name} has no meaning here: {why}") for name, why in REMOVED.items()],
    ],
)
def test_mistakes_in_a_file_name_the_file_the_key_and_the_remedy(
    tmp_path: Path, file: str, message: str
) -> None:
    with pytest.raises(ChopError) as caught:
        layers(tmp_path, file)
    assert str(caught.value).startswith(f"{tmp_path / 'run.toml'}: {message}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("batch_size", "x", "--batch-size: input should be a valid integer"),
        ("task", "clss", "--task: no choice 'clss': did you mean 'cls'?"),
        ("max_epochs", "NA", "--max-epochs: none is not possible; the default is 20"),
        ("num_workers", "-1", "--num-workers: input should be greater than or equal to 0"),
    ],
)
def test_mistakes_on_the_command_line_name_the_flag(name: str, text: str, message: str) -> None:
    with pytest.raises(ChopError) as caught:
        checked_argument(name, text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--btach-size", "3"], "unknown option '--btach-size': did you mean '--batch-size'?"),
        (["--target", "x"], "--target has no meaning here: ch export --to verilog writes circuits"),
        (["a", "b", "c"], "unexpected argument 'c': write ch train [MODEL] [DATASET] [options]"),
        (
            ["--task"],
            (
                "--task: a value must follow: classification or cls or language_modeling or lm or "
                "regression or reg"
            ),
        ),
        (["--cpu"], "--num-workers: a value must follow: a whole number"),
        (["--resume=yes"], "--resume takes no value: leave out ='yes'"),
    ],
)
def test_unknown_arguments_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ChopError) as caught:
        parse_arguments(["train", *arguments])
    assert str(caught.value) == message


def test_options_may_stand_between_the_names() -> None:
    options = parse_arguments(["train", "--cpu=0", "jsc-tiny", "--max-steps", "-1", "jsc"])
    assert options == {
        "action": "train", "model": "jsc-tiny", "dataset": "jsc", "num_workers": "0",
        "max_steps": "-1",
    }  # fmt: skip


def test_the_table_is_the_labs_table(tmp_path: Path) -> None:
    given = layers(tmp_path, "batch_size = 512", "--cpu", "0", "--project-dir", "/a" * 20)
    lines = layers_table(given, colour=False).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    assert cells[0] == ["Name", "Default", "Config. File", "Manual Override", "Effective"]
    names = [row[0] for row in cells[1:] if row[0]]
    assert [name for name in names if name in SEED_ORDER] == SEED_ORDER
    assert ["batch_size", "128", "512", "", "512"] in cells
    assert ["to_debug", "False", "", "", "False"] in cells
    assert ["project_dir", "./mase_output", "", "/a" * 12, "/a" * 12] in cells
    assert ["", "", "", "/a" * 8, "/a" * 8] in cells  # wrapped after 24 characters
    assert len({len(line) for line in lines}) == 1


def test_the_file_column_is_there_only_with_a_file() -> None:
    header = layers_table(Layers.read(None, {}), colour=False).splitlines()[1]
    assert header.split() == ["|", "Name", "|", "Default", "|", "Manual", "Override", "|",
                              "Effective", "|"]  # fmt: skip


def test_values_that_lost_are_grey_on_a_terminal_only(tmp_path: Path) -> None:
    given = layers(tmp_path, "batch_size = 512\nseed = 7", "--batch-size", "128")
    grey = re.findall(re.escape(GREY) + r"(\S+)\033\[0m", layers_table(given, colour=True))
    assert grey == ["128", "512", "0"]
    assert "\033" not in layers_table(given, colour=False)
    assert not wants_colour(io.StringIO())


def test_the_defaults_are_the_originals() -> None:
    defaults = RunConfig()
    assert (defaults.task, defaults.load_type, defaults.batch_size) == ("classification", "mz", 128)
    assert (defaults.learning_rate, defaults.max_epochs, defaults.seed) == (1e-5, 20, 0)
    assert defaults.trainer_precision == "32"


def test_the_record_tells_who_set_what(tmp_path: Path) -> None:
    record = layers(tmp_path, "seed = 7", "--cpu", "0").record(["ch", "train"])
    settings = {row["name"]: row for row in record["settings"]}
    assert settings["seed"]["file"] == settings["seed"]["effective"] == 7
    assert settings["num_workers"]["command_line"] == 0
    assert record["command"] == ["ch", "train"]


def test_the_load_type_of_a_file_is_said_of_its_own_path(tmp_path: Path) -> None:
    """As in ``ch test --config best_0.toml --load GRAPH``."""
    file = tmp_path / "best_0.toml"
    file.write_text('load_name = "best.ckpt"\nload_type = "pl"\n')
    assert Layers.read(str(file), {}).config.load_type == "pl"
    assert Layers.read(str(file), {"load_name": "graph"}).config.load_type == "mz"
    given = {"load_name": "x", "load_type": "pt"}
    assert Layers.read(str(file), given).config.load_type == "pt"
    file.write_text('load_type = "pl"\n')
    assert Layers.read(str(file), {"load_name": "x"}).config.load_type == "pl"
