"""The metrics of chop's own runners: names, units, and usual directions."""

from typing import Literal, NamedTuple

Direction = Literal["maximize", "minimize"]
TRAINED = ("accuracy", "loss", "train_accuracy", "train_loss")
"""What each training of a sweep is measured by."""
STATISTICS = {"_spread": "standard deviation", "_best": "best training", "_worst": "worst training"}
"""What is told of several trainings beside the mean: the ending of a metric's name, and words."""


class MetricInfo(NamedTuple):
    """A metric, what it is counted in, and the direction that is usually wanted, if any."""

    name: str
    unit: str = ""
    direction: Direction | None = None


METRICS = {
    metric.name: metric
    for metric in (
        MetricInfo("accuracy", "fraction of rows", "maximize"),
        MetricInfo("loss", "nats", "minimize"),
        MetricInfo("auc", "fraction of pairs", "maximize"),
        MetricInfo("mae", "units of the target", "minimize"),
        MetricInfo("rmse", "units of the target", "minimize"),
        MetricInfo("mse", "squared units of the target", "minimize"),
        MetricInfo("r2", "share of the variance explained", "maximize"),
        MetricInfo("perplexity", "words", "minimize"),
        MetricInfo("train_accuracy", "fraction of rows", "maximize"),
        MetricInfo("train_loss", "nats", "minimize"),
        MetricInfo("average_bitwidth", "bits per parameter", "minimize"),
        MetricInfo("activation_bitwidth", "bits per activation", "minimize"),
        MetricInfo("memory_density", "times denser than floats", "maximize"),
        MetricInfo("model_size", "bytes", "minimize"),
        MetricInfo("flops", "operations per sample", "minimize"),
        MetricInfo("bitops", "bit operations per sample", "minimize"),
        MetricInfo("ebops", "effective bit operations per sample", "minimize"),
        MetricInfo("accumulator_bits", "bits", "minimize"),
        MetricInfo("luts", "look-up tables of six inputs, by estimate", "minimize"),
        MetricInfo("latency_cycles", "clock cycles", "minimize"),
        MetricInfo("flash_bytes", "bytes, by estimate", "minimize"),
        MetricInfo("ram_bytes", "bytes beside the stack", "minimize"),
        MetricInfo("instructions", "instructions per row, by estimate", "minimize"),
        MetricInfo("block_rams", "block memories of 36,864 bits, by estimate", "minimize"),
        MetricInfo("cycles_per_image", "clock cycles of the slowest layer", "minimize"),
        MetricInfo("latency", "ms", "minimize"),
        MetricInfo("latency_low", "ms", "minimize"),
        MetricInfo("latency_high", "ms", "minimize"),
        MetricInfo("latency_batch_size", "rows"),
    )
}
for name, unit, direction in [METRICS[name] for name in TRAINED]:
    for ending, words in STATISTICS.items():
        wanted = "minimize" if ending == "_spread" else direction
        METRICS[name + ending] = MetricInfo(name + ending, f"{unit}, {words}", wanted)
