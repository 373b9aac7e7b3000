"""Models of physical data, and the table of all models in the form the labs edit."""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from chop.errors import RegistrationError
from chop.models.info import MODELS, MaseModelInfo, ModelEntry
from chop.models.physical import jet_convolution, jet_substructure  # noqa: F401  (register)


class ModelTable(MutableMapping[str, dict[str, Any]]):
    """The registry of models as the labs show it: name → ``{"model": getter, "info": …}``.

    It is a live view. Assigning an entry registers the model, under the name it is assigned to.
    """

    def __getitem__(self, name: str) -> dict[str, Any]:
        entry = MODELS[name]
        return {"model": entry.build, "info": entry.info}

    def __setitem__(self, name: str, entry: Mapping[str, Any]) -> None:
        if set(entry) != {"model", "info"} or not isinstance(entry["info"], MaseModelInfo):
            raise RegistrationError(
                f'model {name!r}: give {{"model": getter, "info": MaseModelInfo(...)}}'
            )
        line = (entry["model"].__doc__ or "").strip().partition("\n")[0]
        info = replace(entry["info"], name=name)
        MODELS.add(name, ModelEntry(info, entry["model"], line or f"your own {name}"))

    def __delitem__(self, name: str) -> None:
        raise RegistrationError(f"model {name!r}: registered models stay")

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in MODELS.items() if entry.info.is_physical_model)

    def __len__(self) -> int:
        return sum(1 for _ in self)


PHYSICAL_MODELS = ModelTable()
