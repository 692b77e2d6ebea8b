"""Run the code of FedDP-KMeans' paper once: ``python run_feddp.py CHECKOUT``.

It works in the folder in which it is started (`checkout.Checkout.run`). The arguments
are those of the code's ``run.py``. With ``only_data`` it stops where the data are made.

``mended`` changes two things inside the code: for single records the noise of the
second moments is scaled by the square of the bound on a record's norm, and the two
noises of a step have own seeds.
"""

import contextlib
import copy
import hashlib
import importlib
import json
import runpy
import sys
import types
from typing import Any

import numpy as np


class _DataMadeError(Exception):
    """The code made its data, and nothing else is wanted."""


def main(checkout: str) -> None:
    """Read what is given, run the code, and write what it found."""
    with open("given.json", encoding="utf-8") as file:
        given = json.load(file)
    sys.path.insert(0, checkout)
    name_framework()
    seen: dict[str, Any] = {"releases": [], "shared": 0}
    arrays: dict[str, Any] = {}
    watch_data(importlib.import_module("data"), seen, arrays, given["only_data"])
    privacy = importlib.import_module("privacy")
    watch_seeds(privacy.MultipleMechanisms, seen, given)
    if given["mended"]:
        scale_moments(privacy)
    watch_result(importlib.import_module("utils"), seen, arrays)
    sys.argv = [f"{checkout}/run.py", *given["arguments"]]
    with contextlib.suppress(_DataMadeError):
        runpy.run_path(sys.argv[0], run_name="__main__")
    np.savez("found.npz", **arrays)
    with open("found.json", "w", encoding="utf-8") as file:
        json.dump(seen, file)


def name_framework() -> None:
    """Make a module where PyTorch is not installed: the code names it, and no more."""
    name = "pfl.internal.ops.pytorch_ops"
    try:
        importlib.import_module(name)
    except ImportError:
        module = types.ModuleType(name)
        sys.modules[name] = module
        importlib.import_module("pfl.internal.ops").pytorch_ops = module  # type: ignore[attr-defined]


def watch_data(
    data: Any, seen: dict[str, Any], arrays: dict[str, Any], only_data: bool
) -> None:
    """Note the digest of the records, and the records themselves if only they count."""
    make = data.make_data

    def watched(arguments: Any) -> Any:
        made = make(arguments)
        _, _, of_server, central = made
        records = np.ascontiguousarray(central[0].raw_data[0])
        seen["records"] = hashlib.sha256(records.tobytes()).hexdigest()
        seen["clients"] = arguments.num_train_clients
        if only_data:
            arrays["records"] = records
            arrays["server"] = np.asarray(of_server.raw_data[0])
            raise _DataMadeError
        return made

    data.make_data = watched


def watch_seeds(pair: Any, seen: dict[str, Any], given: dict[str, Any]) -> None:
    """Count the steps whose noises have one seed, and give own ones if it is mended."""
    add = pair.add_noise

    def watched(self: Any, *words: Any, **more: Any) -> Any:
        seeds: list[Any] = []
        for place, mechanism in enumerate(self.mechanisms):
            note_seed(mechanism, seeds, place if given["mended"] else None)
        found = add(self, *words, **more)
        for mechanism in self.mechanisms:
            del mechanism.add_noise
        seen["shared"] += int(None not in seeds and len(set(seeds)) < len(seeds))
        return found

    pair.add_noise = watched


def note_seed(mechanism: Any, seeds: list[Any], place: int | None) -> None:
    """Note the seed of a mechanism's noise, changed by its place if there is one."""
    add = mechanism.add_noise

    def noted(*words: Any, seed: Any = None, **more: Any) -> Any:
        if place is not None and seed is not None:
            state = np.random.SeedSequence((int(seed), place)).generate_state(1)
            seed = int(state[0])
        seeds.append(seed)
        return add(*words, seed=seed, **more)

    mechanism.add_noise = noted


def scale_moments(privacy: Any) -> None:
    """Let the noise of second moments of single records have the bound's square."""
    get = privacy.get_mechanism

    def scaled(arguments: Any, name: str) -> Any:
        if name == "outer_product" and arguments.datapoint_privacy:
            arguments = copy.copy(arguments)
            arguments.outer_product_clipping_bound **= 2
        return get(arguments, name)

    privacy.get_mechanism = scaled


def watch_result(utils: Any, seen: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Note centroids, releases and the stated epsilon of the private steps."""
    evaluate = utils.post_evaluation

    def watched(
        results: Any, arguments: Any, model: Any, data: Any, when: str, *words: Any
    ) -> Any:
        evaluated = evaluate(results, arguments, model, data, when, *words)
        if when != "Optimal":
            centers = getattr(model, "centers", None)
            if centers is None:
                centers = model.initial_centers
            arrays["centroids"] = np.asarray(centers)
            seen["stated"] = float(results[when]["Privacy cost"][0])
            seen["releases"] = releases_of(words[0], words[1])
        return evaluated

    utils.post_evaluation = watched


def releases_of(mechanisms: Any, times: Any) -> list[list[Any]]:
    """Return kind and noise over the clip of each release, in the order of the run."""
    releases: list[list[Any]] = []
    for mechanism, count in zip(mechanisms, times, strict=True):
        for part in getattr(mechanism, "mechanisms", [mechanism]):
            if hasattr(part, "relative_noise_stddev"):
                release = ["gaussian", float(part.relative_noise_stddev)]
            else:
                release = ["laplace", 1 / float(part._epsilon)]
            releases += [release] * count
    return releases


if __name__ == "__main__":
    main(sys.argv[1])
