"""The learning curves of a run as a picture."""

from pathlib import Path

from chop.files import replacing
from chop.tools.training.state import History

PANELS = {
    "loss": {"train_loss": "training", "val_loss_epoch": "validation"},
    "accuracy": {"train_acc": "training", "val_acc_epoch": "validation"},
}


def draw_curves(history: History, path: Path, title: str) -> None:
    """Draw loss and accuracy over the epochs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6))
    figure.subplots_adjust(0.08, 0.14, 0.98, 0.88, wspace=0.22)
    figure.suptitle(title)
    for axes, (name, curves) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for column, label in curves.items():
            points = [(row["epoch"], row[column]) for row in history if column in row]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    with replacing(path) as temporary:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, format="png")
