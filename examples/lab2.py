"""Lab 2: a network as a graph, reports, statistics, quantisation, and a custom pass.

python examples/lab2.py                          trains jsc-tiny and jsc-new first
python examples/lab2.py --load best.ckpt         takes jsc-tiny from Lab 1 (--load-type pl)
python examples/lab2.py --quick                  one short epoch each, as a check

Needs nothing but chop; the figure of weights before and after goes to --output.
"""

import argparse
from pathlib import Path

import torch

from chop import actions
from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    count_operations_analysis_pass,
    init_metadata_analysis_pass,
    load_mase_graph_interface_pass,
    profile_statistics_analysis_pass,
    quantize_transform_pass,
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
    save_mase_graph_interface_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.analysis.quantization import calculate_flops_pass
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
from chop.tools.checkpoint_load import load_model
from chop.tools.get_input import InputGenerator
from chop.tools.logger import set_logging_verbosity

QUANTISE = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            "data_in_width": 8,
            "data_in_frac_width": 4,
            "weight_width": 8,
            "weight_frac_width": 4,
            "bias_width": 8,
            "bias_frac_width": 4,
        }
    },
}


class Setup:
    """A trained network with data for it, as the notebook's first cells make them."""

    def __init__(self, model_name: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.data_module = MaseDataModule(
            name=options.dataset, batch_size=8, model_name=model_name, num_workers=0
        )
        self.data_module.prepare_data()
        self.data_module.setup()
        self.model_info = get_model_info(model_name)
        self.model = get_model(
            model_name, task="cls", dataset_info=self.data_module.dataset_info, pretrained=False
        )
        load_name, load_type = options.load, options.load_type
        if load_name is None or model_name != "jsc-tiny":
            load_name, load_type = self.trained(model_name, options), "pl"
        self.model = load_model(load_name=load_name, load_type=load_type, model=self.model)
        self.input_generator = InputGenerator(
            data_module=self.data_module,
            model_info=self.model_info,
            task="cls",
            which_dataloader="train",
        )
        self.dummy_in = next(iter(self.input_generator))

    def trained(self, model_name: str, options: argparse.Namespace) -> Path:
        """The checkpoint of a short training, if there is none from Lab 1."""
        data = MaseDataModule(options.dataset, batch_size=1024, num_workers=0)
        run = actions.train(
            self.model,
            self.model_info,
            data,
            data.dataset_info,
            task="cls",
            learning_rate=1e-2,
            plt_trainer_args={"max_epochs": options.max_epochs},
            save_path=options.output / model_name,
        )
        return Path(run.best)

    def graph(self) -> MaseGraph:
        """The network as a MaseGraph with its metadata."""
        mg = MaseGraph(model=self.model)
        mg, _ = init_metadata_analysis_pass(mg, None)
        mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": self.dummy_in})
        mg, _ = add_software_metadata_analysis_pass(mg, None)
        return mg


def report(mg: MaseGraph, setup: Setup) -> None:
    """Questions 1, 2 and 4: the graph, and statistics of its weights and activations."""
    pass_args = {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["relu"],
        "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
        "activation_statistics": {
            "range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97}
        },
        "input_generator": setup.input_generator,
        "num_samples": 32,
    }
    _ = report_graph_analysis_pass(mg)
    mg, _ = profile_statistics_analysis_pass(mg, pass_args)
    mg, _ = report_node_meta_param_analysis_pass(mg, {"which": ("software",)})


def compare(ori_mg: MaseGraph, mg: MaseGraph) -> None:
    """Questions 4 and 6: both graphs node by node, with the weights of what changed."""
    for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes, strict=True):
        if type(get_node_actual_target(n)) is not type(get_node_actual_target(ori_n)):
            ori_module = get_node_actual_target(ori_n)
            quant_module = get_node_actual_target(n)
            print(
                f"Difference found at name: {n.name}, "
                f"MASE type: {get_mase_type(n)}, MASE operation: {get_mase_op(n)}\n"
                f"Original module: {type(ori_module)}, "
                f"Old Non Quantized Weights: {ori_module.weight[0:1]} --> "
                f"New module: {type(quant_module)}, "
                f"New Quantized Weights: {quant_module.get_quantized_weight()[0:1]}"
            )
            test_input = torch.randn(quant_module.in_features)
            print(f"Random generated test input: {test_input}")
            print(f"Output for original module: {ori_module(test_input)}")
            print(f"Output for quantized module: {quant_module(test_input)}")


def draw_weights(mg: MaseGraph, node_name: str, path: Path) -> None:
    """Question 6, figures 1 and 2: the weights of a layer before and after quantisation."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    node = next(node for node in mg.fx_graph.nodes if node.name == node_name)
    layer = get_node_actual_target(node)
    weights = layer.weight.detach().flatten()
    rounded = layer.get_quantized_weight().detach().flatten()
    step = 2.0**-layer.w_quantizer.frac_width
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    before, after = figure.subplots(1, 2, sharex=True)
    before.hist(weights.numpy(), bins=60, color="tab:blue")
    before.set(title=f"{node_name}: {len(weights)} float weights", ylabel="weights")
    values, counts = rounded.add(0.0).unique(return_counts=True)
    after.bar(values.numpy(), counts.numpy(), width=0.8 * step, color="tab:orange")
    after.set(title=f"the same in steps of {step:g}: {len(values)} different values")
    for axes in (before, after):
        axes.set_xlabel("value")
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"Figure: {path}")


def calculate_flops_mg_pass(mase_graph: MaseGraph) -> tuple[MaseGraph, dict[str, object]]:
    """The optional task: a custom pass that counts operations module by module."""
    flops_breakdown = {}
    total_flops = 0
    for node in mase_graph.fx_graph.nodes:
        common = node.meta["mase"].parameters["common"]
        try:
            in_data = (common["args"]["data_in_0"]["value"],)
        except KeyError:
            in_data = (None,)
        out_data = (common["results"]["data_out_0"]["value"],)
        module = get_node_actual_target(node)
        if isinstance(module, torch.nn.Module):
            module_flops = calculate_flops_pass(module, in_data, out_data)
            flops_breakdown[module] = module_flops
            total_flops += module_flops["computations"]
    print("FLOPs Calculation Breakdown: ", flops_breakdown)
    print("\nTotal FLOPs: ", total_flops)
    return mase_graph, {"flop_module_breakdown": flops_breakdown, "total_flops": total_flops}


def save_and_load(mg: MaseGraph, setup: Setup, folder: Path) -> None:
    """The quantised network on disk: its weights as 8-bit codes, and back to the same outputs."""
    args = {"save_dir": folder, "weights": "codes", "replace": True}
    mg, info = save_mase_graph_interface_pass(mg, args)
    loaded, _ = load_mase_graph_interface_pass(None, {"load_dir": info["save_dir"]})
    mg.model.eval()
    loaded.model.eval()
    same = torch.equal(loaded.model(**setup.dummy_in), mg.model(**setup.dummy_in))
    print(f"Loaded graph gives the same outputs: {same}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="jsc-sim")
    parser.add_argument("--load", type=Path, help="a checkpoint of jsc-tiny from Lab 1")
    parser.add_argument("--load-type", default="pl")
    parser.add_argument("--max-epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("mase_output/lab2"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.max_epochs = 1
    return options


def main() -> None:
    options = parse()
    set_logging_verbosity("info")
    for model_name, drawn in (("jsc-tiny", "seq_blocks_2"), ("jsc-new", "seq_blocks_5")):
        print(f"\n== {model_name} ==")
        setup = Setup(model_name, options)
        ori_mg, mg = setup.graph(), setup.graph()
        report(ori_mg, setup)
        mg, _ = quantize_transform_pass(mg, QUANTISE)
        folder = options.output / model_name
        summarize_quantization_analysis_pass(ori_mg, mg, save_dir=folder / "quantize_summary")
        report(mg, setup)
        compare(ori_mg, mg)
        draw_weights(mg, drawn, folder / "weights.png")
        calculate_flops_mg_pass(ori_mg)
        count_operations_analysis_pass(ori_mg)
        count_operations_analysis_pass(mg)
        save_and_load(mg, setup, folder / "transformed_ckpt")


if __name__ == "__main__":
    main()
