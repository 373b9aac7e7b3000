"""Settings that the project of ``--load`` knows, so that they need not be given again."""

from dataclasses import replace
from pathlib import Path

from chop.catalogue import read_catalogue
from chop.config.layers import Layers, check_setting_value
from chop.loading.paths import GRAPH_TYPE, loadable
from chop.loading.records import left_out, require_code


def with_project(verb: str, layers: Layers, *, graphs: bool = False) -> Layers:
    """Return the layers with settings that were left out and that the project of ``--load`` knows.

    Args:
        graphs: whether the verb can do with a graph alone, without the model it is made of.
    """
    given = layers.effective
    where = f"{given.get('load_name')}: the record of its project"
    known = {
        name: check_setting_value(name, value, f"{where}: {name}", where)
        for name, value in left_out(given).items()
    }
    if "model" in known and not given["imports"]:
        load = given["load_name"]
        if graphs and loadable(Path(load))[1] == GRAPH_TYPE:
            del known["model"]
        else:
            require_code(known["model"], read_catalogue()["models"], load, verb)
    return replace(layers, project=known)
