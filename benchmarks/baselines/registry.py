"""All methods of the field's benchmark, by name."""

from importlib.util import find_spec

from baselines import lsh, pure
from baselines.house import HOUSE
from baselines.method import Method
from baselines.pca_lloyd import PcaLloyd

_SUMS = "one party sees all records; its queries are sums"

OUTSIDE = (
    Method("DP-LSH", lsh.fit, lsh.releases, "one party sees all records"),
    Method("PCA + DP-Lloyd", PcaLloyd().fit, PcaLloyd().releases, _SUMS),
)

PURE: tuple[Method, ...] = ()
if find_spec("diffprivlib") is not None:
    PURE = (pure.DIFFPRIVLIB,)

METHODS = {method.name: method for method in (*HOUSE, *OUTSIDE, *PURE)}
