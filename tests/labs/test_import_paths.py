"""Every import path that the lab documents and the original's tutorials use."""

import subprocess
import sys
from importlib import import_module

import pytest

from chop.aliases import ALIASES

GRAPH_PASSES = """
    init_metadata_analysis_pass add_common_metadata_analysis_pass
    add_software_metadata_analysis_pass report_graph_analysis_pass report_node_type_analysis_pass
    report_node_shape_analysis_pass
    report_node_meta_param_analysis_pass profile_statistics_analysis_pass
    verify_metadata_analysis_pass calculate_avg_bits_mg_analysis_pass
""".split()
HARDWARE = "add_hardware_metadata_analysis_pass report_node_hardware_type_analysis_pass".split()
TRANSFORMS = """
    quantize_transform_pass summarize_quantization_analysis_pass prune_transform_pass
    prune_detach_hook_transform_pass conv_bn_fusion_transform_pass
""".split()
INTERFACE = """
    save_mase_graph_interface_pass load_mase_graph_interface_pass
    save_node_meta_param_interface_pass load_node_meta_param_interface_pass
""".split()
VERIFY = """
    verify_metadata_analysis_pass verify_common_metadata_analysis_pass
    verify_software_metadata_analysis_pass verify_hardware_metadata_analysis_pass
""".split()
QUANTIZED = "chop.passes.graph.transforms.quantize.quantized_modules"

PATHS = {
    "chop": ["MaseGraph", "__version__"],
    "chop.ir": ["MaseGraph"],
    "chop.ir.graph": ["MaseGraph"],
    "chop.ir.graph.mase_graph": ["MaseGraph", "MaseTracer"],
    "chop.ir.graph.mase_metadata": ["MaseMetadata"],
    "chop.passes": ["PASSES", *GRAPH_PASSES, *TRANSFORMS],
    "chop.passes.graph": [
        "PASSES", "ANALYSIS_PASSES", "TRANSFORM_PASSES", "INTERFACE_PASSES",
        *GRAPH_PASSES, *TRANSFORMS, *INTERFACE,
    ],
    "chop.passes.graph.analysis": [*GRAPH_PASSES, *VERIFY, *HARDWARE, "report"],
    "chop.passes.graph.transforms": TRANSFORMS,
    "chop.passes.graph.interface": INTERFACE,
    "chop.passes.graph.analysis.quantization": [
        "calculate_avg_bits_mg_analysis_pass", "calculate_flops_pass",
    ],
    "chop.passes.graph.analysis.statistical_profiler": ["profile_statistics_analysis_pass"],
    "chop.passes.graph.analysis.statistical_profiler.stat": [
        "Record", "VarianceOnline", "VariancePrecise", "RangeNSigma", "RangeMinMax",
        "RangeQuantile", "AbsMean", "STAT_NAME_TO_CLS", "create_new_stat",
    ],
    "chop.passes.graph.analysis.pruning.calculate_sparsity": [
        "add_pruning_metadata_analysis_pass",
    ],
    "chop.passes.graph.analysis.pruning.calculate_natural_sparsity": [
        "add_natural_sparsity_metadata_analysis_pass",
    ],
    "chop.passes.graph.analysis.pruning.hook_inspector": ["hook_inspection_analysis_pass"],
    "chop.passes.graph.common": ["MASE_TYPES", "MASE_TYPE_MAP"],
    "chop.passes.graph.utils": [
        "get_mase_op", "get_mase_type", "get_node_actual_target", "get_parent_name",
        "get_module_by_name", "get_node_by_name", "deepcopy_mase_graph",
    ],
    "chop.passes.module.analysis": ["calculate_avg_bits_module_analysis_pass"],
    f"{QUANTIZED}.linear": ["LinearInteger", "LinearBlockFP", "LinearMinifloatIEEE"],
    f"{QUANTIZED}.conv1d": ["Conv1dInteger"],
    f"{QUANTIZED}.conv2d": ["Conv2dInteger", "Conv2dBlockFP"],
    f"{QUANTIZED}.relu": ["ReLUInteger"],
    "chop.dataset": ["MaseDataModule", "get_dataset_info", "AVAILABLE_DATASETS"],
    "chop.dataset.physical.jsc": [],
    "chop.models": ["get_model", "get_model_info"],
    "chop.models.utils": ["MaseModelInfo", "ModelSource", "ModelTaskType"],
    "chop.models.physical": ["PHYSICAL_MODELS"],
    "chop.models.toys.toy": ["ToyNet", "ToyConvNet"],
    "chop.models.toys.toy_custom_fn": ["ToyCustomFnNet"],
    "chop.tools.get_input": ["InputGenerator", "get_dummy_input", "get_cf_args"],
    "chop.tools": ["get_dummy_input", "load_model"],
    "chop.tools.checkpoint_load": ["load_model"],
    "chop.tools.logger": ["set_logging_verbosity", "get_logger", "root_logger"],
    "chop.actions": ["train", "test", "transform"],
    "chop.actions.train": ["train"],
    "chop.actions.test": ["test"],
    "chop.actions.transform": ["transform"],
    "chop.actions.search": ["search"],
    "chop.models.toy.toy": ["ToyNet", "ToyConvNet"],
    "chop.passes.graph.mase_graph": ["MaseGraph"],
    "chop.passes.analysis": GRAPH_PASSES,
    "chop.passes.transforms": TRANSFORMS,
    "chop.passes.utils": ["deepcopy_mase_graph"],
    "chop.passes.graph.analysis.init_metadata": ["init_metadata_analysis_pass"],
    "chop.passes.graph.analysis.verify": VERIFY,
    "chop.passes.graph.transforms.pruning.prune_detach_hook": ["prune_detach_hook_transform_pass"],
    "chop.passes.graph.transforms.quantize.summary": ["summarize_quantization_analysis_pass"],
    "chop.passes.graph.transforms.utils": TRANSFORMS,
    "chop.passes.graph.transforms.utils.conv_bn_fusion": ["conv_bn_fusion_transform_pass"],
    "chop.cli": ["main"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in PATHS.items() for name in names]
)
def test_the_path_resolves(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("module", PATHS)
def test_the_module_exists(module: str) -> None:
    assert import_module(module)


def test_an_action_is_a_function_by_any_path() -> None:
    """``chop.actions.train(…)`` works before and after ``from chop.actions.train import train``."""
    code = """
from chop import actions
before = actions.train
from chop.actions.train import train
assert train is before
assert callable(actions.train)
try:
    actions.train(None)
except Exception as error:
    assert "train: data_module is missing" in str(error), error
else:
    raise AssertionError("not the action")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_of_the_original_is_the_module_itself() -> None:
    for path, home in ALIASES.items():
        assert import_module(path) is import_module(home)
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("chop.passes.analysis.nothing")
