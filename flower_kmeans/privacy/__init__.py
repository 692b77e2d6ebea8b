"""Privacy: budgets, the joint cost of releases, their noise, and a node's ledger.

This package knows nothing of k-means or of Flower.
"""

from flower_kmeans.privacy.budget import PrivacyBudget as PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan as PrivacyPlan
from flower_kmeans.privacy.plan import calibrate as calibrate
from flower_kmeans.privacy.release import Release as Release
