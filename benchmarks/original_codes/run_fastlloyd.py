"""Run the code of FastLloyd's paper: ``python run_fastlloyd.py CHECKOUT``.

It works in the folder in which it is started (`checkout.Checkout.run`). Records are in
[-1, 1]. The parameters are those of the paper's accuracy experiment. One process makes
all wanted runs on the records, because to import the code takes longer than a run.

A run that is ``mended`` changes two things inside the code: noise is rounded to the
nearest integer instead of cut toward zero, and each noise of each round has an own seed.
"""

import importlib
import json
import os
import sys
from typing import Any

import numpy as np


def main(checkout: str) -> None:
    """Read what is given, make the runs, and write what they found."""
    with open("given.json", encoding="utf-8") as file:
        given = json.load(file)
    with np.load("given.npz") as arrays:
        records = arrays["records"]
    # The code lists this folder when it is imported.
    os.mkdir("data")
    sys.path.insert(0, checkout)
    # The code's names stay its own: they are changed for mended runs, and set back.
    server: Any = importlib.import_module("parties.server")
    names = {name: getattr(server, name) for name in ("to_int", "to_fixed")}
    planned = server.Server.dp_setup
    arrays_found, facts_found = {}, []
    for place, wanted in enumerate(given["runs"]):
        seen: dict[str, Any] = {"releases": [], "shared": 0, "fixed": 0, "rounds": 0}
        server.Server.dp_setup = watched(planned, seen, given["seed"], wanted["mended"])
        if wanted["mended"]:
            server.to_int = rounded
            server.to_fixed = rounded_to_grid
        arrays_found[f"centroids{place}"] = run_once(records, given, wanted["epsilon"])
        facts_found.append(seen)
        for name, function in names.items():
            setattr(server, name, function)
    np.savez("found.npz", **arrays_found)
    with open("found.json", "w", encoding="utf-8") as file:
        json.dump({"runs": facts_found}, file)


def run_once(records: Any, given: dict[str, Any], epsilon: float) -> Any:
    """Return the centroids of one run of the code."""
    configs = importlib.import_module("configs")
    data_io = importlib.import_module("data_io")
    protocols = importlib.import_module("utils.protocols")
    parameters = configs.Params(
        num_clients=given["n_clients"],
        k=given["n_clusters"],
        dim=records.shape[1],
        data_size=len(records),
        dp="gaussiananalytic",
        eps=epsilon,
        method="diagonal_then_frac",
        alpha=0.8,
        post="fold",
    )
    parameters.calculate_iters()
    parameters.seed = given["seed"]
    # The code divides the records by NumPy's global generator.
    np.random.seed(given["seed"])  # noqa: NPY002
    parts = data_io.shuffle_and_split(data_io.to_fixed(records), given["n_clients"])
    found, _ = protocols.local_proto(parts, parameters)
    return data_io.unscale(found)


def rounded(noise: Any) -> Any:
    """Return noise as the nearest integer."""
    return np.rint(noise).astype(np.int32)


def rounded_to_grid(noise: Any) -> Any:
    """Return noise as the nearest point of the code's grid."""
    return rounded(noise * importlib.import_module("data_io").SCALE)


def watched(planned: Any, seen: dict[str, Any], seed: int, is_mended: bool) -> Any:
    """Return the code's set-up of a round's noise, which is noted, and maybe mended.

    ``seen`` counts the rounds, those whose sums and counts share one stream of noise,
    and those whose noise has the seed 0. It lists the noise over the sensitivity.
    """

    def set_up(self: Any, params: Any = None) -> None:
        planned(self, params)
        radius = (params or self.params).max_dist
        mechanisms = (self.sum_mech, self.count_mech)
        if is_mended:
            for place, mechanism in enumerate(mechanisms):
                words = (seed, seen["rounds"], place)
                state = np.random.SeedSequence(words).generate_state(4)
                mechanism._rng = np.random.RandomState(state)
        of_sums, of_counts = (key_of(mechanism._rng) for mechanism in mechanisms)
        seen["rounds"] += 1
        seen["shared"] += int(np.array_equal(of_sums, of_counts))
        of_zero = key_of(np.random.RandomState(0))
        seen["fixed"] += int(np.array_equal(of_counts, of_zero))
        seen["releases"].append(["gaussian", self.sum_mech._scale / radius])
        seen["releases"].append(["gaussian", self.count_mech._scale])

    return set_up


def key_of(generator: Any) -> Any:
    """Return the state's words of a generator."""
    return generator.get_state()[1]


if __name__ == "__main__":
    main(sys.argv[1])
