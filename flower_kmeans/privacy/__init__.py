"""Privacy: what a run may cost, what its answers cost, and the noise that makes it true.

- :mod:`~flower_kmeans.privacy.budget`: the (epsilon, delta) that a user asks for.
- :mod:`~flower_kmeans.privacy.calibration`: Gaussian differential privacy in closed form.
- :mod:`~flower_kmeans.privacy.mixture`: numerical composition of Gaussian with Laplace releases.
- :mod:`~flower_kmeans.privacy.release`: one noisy answer, and how much noise it carries.
- :mod:`~flower_kmeans.privacy.plan`: every release of a run, calibrated together.
- :mod:`~flower_kmeans.privacy.randomness`: the operating system's source, and streams from keys.
- :mod:`~flower_kmeans.privacy.noise`: exact samplers of integer noise.
- :mod:`~flower_kmeans.privacy.filter`: what runs cost together that are chosen after each other.
- :mod:`~flower_kmeans.privacy.ledger`: what a node released, over all runs, in a file.
- :mod:`~flower_kmeans.privacy.report`: what a finished run tells its user.

This package knows nothing of k-means or of Flower.
"""

from flower_kmeans.privacy.budget import PrivacyBudget as PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan as PrivacyPlan
from flower_kmeans.privacy.plan import calibrate as calibrate
from flower_kmeans.privacy.release import Release as Release

__all__ = ["PrivacyBudget", "PrivacyPlan", "Release", "calibrate"]
