"""Make tensorflow_privacy_table.json with tensorflow-privacy, which need not be installed.

    pip install --no-deps --target tfp tensorflow-privacy==0.9.0
    PYTHONPATH=tfp python tests/privacy/make_tensorflow_privacy_table.py

It cannot be installed with its dependencies beside flwr. Its accounting needs none of
them but dp-accounting, on which this library depends, too. The committed table was made
with all of them, in a separate environment: tensorflow 2.15.1 and dp-accounting
0.4.3. test_tensorflow_privacy.py compares what this script finds with that table.

Nothing of this library is imported: the table is an outsider's opinion. "rounds" rows
are full batches (sampling probability 1) of the Gaussian mechanism, the same release in
every round.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.skip_tf_privacy_import = True  # its own switch: it imports no TensorFlow

from tensorflow_privacy.privacy.analysis import (  # noqa: E402
    compute_dp_sgd_privacy_lib as dp_sgd,
)
from tensorflow_privacy.privacy.analysis import gdp_accountant  # noqa: E402

DELTAS = (1e-5, 1e-6, 1e-9)
MUS = (0.05, 0.236, 0.5, 1.0, 2.0, 4.0)
ROUNDS = ((1, 0.8), (2, 1.5), (2, 12.0), (5, 4.0), (7, 2.0), (7, 11.0), (7, 60.0))


def table() -> dict[str, Any]:
    """Return the versions, and what tensorflow-privacy says of each row."""
    accountants = dp_sgd.AccountantType
    epsilons = [
        {"mu": mu, "delta": delta, "epsilon": gdp_accountant.eps_from_mu(mu, delta)}
        for mu in MUS
        for delta in DELTAS
    ]
    deltas = [
        {
            "mu": mu,
            "epsilon": epsilon,
            "delta": gdp_accountant.delta_eps_mu(epsilon, mu),
        }
        for mu in MUS
        for epsilon in (mu / 2, mu, 2 * mu)
    ]
    rounds = [
        {
            "rounds": number,
            "noise_multiplier": multiplier,
            "delta": delta,
            **{
                f"epsilon_{accountant.value.lower()}": dp_sgd._compute_dp_sgd_example_privacy(
                    num_epochs=number,
                    noise_multiplier=multiplier,
                    example_delta=delta,
                    used_microbatching=False,
                    poisson_subsampling_probability=1.0,
                    accountant_type=accountant,
                )
                for accountant in (accountants.PLD, accountants.RDP)
            },
        }
        for number, multiplier in ROUNDS
        for delta in DELTAS
    ]
    return {
        "versions": {
            name: version(name) for name in ("tensorflow-privacy", "dp-accounting")
        },
        "epsilon_from_mu": epsilons,
        "delta_from_mu": deltas,
        "rounds": rounds,
    }


def main() -> None:
    path = Path(__file__).with_name("tensorflow_privacy_table.json")
    path.write_text(json.dumps(table(), indent=1) + "\n")


if __name__ == "__main__":
    main()
