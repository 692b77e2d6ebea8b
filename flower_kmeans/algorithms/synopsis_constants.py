"""The constants of SynopsisKMeans, in the order of docs/guarantees, Theorem 22.

Each names its paragraph there. No guarantee rests on a value: fractions of mu^2 always
sum to 1, and everything after the sum is post-processing. Clients of an oblivious
server must have the same values, so a change of one is a change of the digests in
tests/algorithms/test_replay.py.

Values were chosen by experiment: all but the last two groups on the sets that
docs/tables/losses.md names, those of the number of clusters on the sets of
docs/tables/choose-k.md ("What the rule was tuned on"), and those of bounds on sizes on
three sets of docs/tables/sizes.md. D is the largest norm of a record, and variances are
in units of D^2.
"""

# -------------------------------------------- the table: fractions of mu^2 by release

MOMENT_FRACTION = 0.08
"""Fraction of round 1."""

MOST_SYNOPSIS = 0.55
"""Largest fraction of all synopsis rounds: that in at most `FEW_COLUMNS` columns."""

LEAST_SYNOPSIS = 0.30
"""Least fraction of all synopsis rounds."""

FEW_COLUMNS = 8
"""Columns beyond which the synopsis gets less, by the fourth root of their number."""

GROWTH = 1.5
"""Fraction of a synopsis round over that of the round before."""

REFINEMENT_COUNTS = 0.4
"""Fraction of a refinement round's counts, over the one that is best for a single mean."""

SIZING_ROUNDS = 4
"""Rounds that ask for sizes alone, with bounds on them ("Bounds on cluster sizes")."""

SIZING = 0.10
"""Fraction of all rounds for sizes. The others keep their proportions."""

# ------------------------------------------------------------- "Decided in advance"

FIRST = 1
"""The round of second moments."""

REFINEMENTS = 4
"""Lloyd rounds. Moves are weighed by their noise, so more rounds lose little."""

SECOND_ROUND = 6.0
"""c from which on the synopsis has a second round."""

THIRD_ROUND = 14.0
"""c from which on the synopsis has a third round."""

COUNT_DIRECTIONS = 4
"""Directions p at which counts have half of a synopsis round ("Sensitivity")."""

COUNT_POWER = 0.2
"""Power of p by which the counts' fraction falls ("Sensitivity")."""

CELL_COUNT = 1.0
"""Records that a cell should have, in standard deviations of its count's noise."""

FEWEST_CELLS = 2
"""Least number of cells, in clusters."""

MOST_CELLS = 5
"""Largest number of cells, in clusters."""

CLEAR_MOMENTS = 0.35
"""Noise that second moments may have: of the largest eigenvalue, in N D^2."""

MOST_COLUMNS = 128
"""Most columns with second moments: eigenvectors of more take seconds at every client."""

MOST_DIRECTIONS = 64
"""Most directions of a synopsis with second moments."""

BLIND_DIRECTIONS = 16
"""Most directions of a synopsis without them."""

ANY_CLUSTERS = 1, 20
"""Fewest and most clusters of a run that is not given a number."""

MOST_CHOSEN = 100
"""Most clusters of a run that chooses: an update that compares more takes minutes."""

MOST_BOUNDED = 256
"""Most clusters with bounds on sizes: an update that finds more weights takes minutes."""

# ----------------------------------------- "The same on every processor": integers

REAL_BITS = 52
"""Fractional bits of reals in a state: lengths and variances in units of D."""

TOTAL_BITS = 16
"""Fractional bits of the number of records of a mixture in a state."""

MODEL_BITS = 16
"""Fractional bits of points of a mixture."""

WEIGHT_BITS = 26
"""Bits of the sum of a mixture's weights, where integers stand for them."""

DIVIDED_BITS = 16
"""Bits that a weight has more where it is divided among points."""

DOUBT_BITS = 50
"""Fractional bits of variances of noise, where they are added up."""

MASS_BITS = 40
"""Bits of the masses that the planned records have together, at first."""

MOVE_BITS = 24
"""Fractional bits of a move, where it is projected."""

SMALLEST = 1e-12
"""Least variance that is divided by: below the square of a grid step."""

# ----------------------------------------------------------------- "Second moments"

PRIOR_NORM = 0.25
"""Mean squared norm of the records that is likely before any is seen."""

PRIOR_SPREAD = 0.2
"""Standard deviation of that norm."""

LEAST_NORM = 0.0005
"""Least mean squared norm."""

NOISE_NORM = 0.3
"""Least mean squared norm, in standard deviations of its noise."""

MOST_NORM_NOISE = 0.02
"""Most noise that counts for the least norm."""

CLEAR = 1.1
"""Eigenvalue, over the largest of noise alone, from which on it counts."""

LEAST_REST = 0.02
"""Least part of the norm that is left to directions without a clear eigenvalue."""

LEAST_VARIANCE = 1e-7
"""Least variance of a direction."""

HEAVY_PART = 0.2
"""Part of the first model's records that are spread more widely."""

HEAVY_SCALE = 3.0
"""Their standard deviation, over that of the others."""

# -------------------------------------------------------------------------- "Cells"

LEAST_SAMPLE = 2_000
"""Least number of the model's points that cells are made of."""

POINTS_PER_CELL = 10
"""Points per cell, beyond the least number."""

MOST_POINTS_PER_CELL = 20
"""Most points per cell, also below the least number."""

PARTITION_STEPS = 6
"""Steps of k-means that make cells."""

PSEUDO_POINTS = 5.0
"""Points with the variance of all cells that each cell's variance counts beside its own."""

LEAST_SPREAD = 0.64
"""Least variance that a cell's radius follows, over that of all cells."""

LEAST_FACTOR = 1.0
"""Least radius rho, in root mean squares of what it cuts."""

MOST_FACTOR = 2.6
"""Largest radius rho."""

FACTOR_START = 0.7
"""Radius rho at a signal s of 1."""

FACTOR_GROWTH = 0.3
"""Growth of rho with the logarithm of s."""

LEAST_SIGNAL = 0.1
"""Least signal s that rho follows."""

MOST_SIGNAL = 1e6
"""Largest signal s that rho follows: without noise it is infinite."""

# -------------------------------------------------------------------------- "Model"

LEAST_POOLED = 0.02
"""Least variance within all cells, over that of the model before."""

MOST_POOLED = 4
"""Largest variance within all cells, over that of the model before."""

LEAST_OWN = 0.05
"""Least variance within one cell, over that within all."""

MOST_OWN = 6
"""Largest variance within one cell, over that of the model before."""

# ---------------------------------------------------------------------- "Selection"

MOST_STARTS = 25
"""Most starts of weighted k-means on a mixture's means."""

FEWEST_STARTS = 5
"""Fewest starts."""

START_WORK = 2**22
"""Distances for which there are starts: with hundreds of clusters one takes seconds."""

SELECT_STEPS = 8
"""Steps of weighted k-means on the means."""

POLISH_PAIRS = 5_000
"""Pairs of points of a mixture on which k-means goes on."""

MOST_PAIRS_PER_CELL = 20
"""Most pairs of points per part."""

POLISH_STEPS = 12
"""Lloyd steps on these points."""

# --------------------------------------------------------------------- "Refinement"

RADIUS_FACTOR = 0.9
"""Radius over that of the synopsis, for the same mean square."""

LEAST_RADIUS2 = 0.15
"""Least mean square that a radius follows, over the first."""

DRIFT = 0.3
"""Variance of a centroid for other reasons than noise, over that of its records."""

DRIFT_DECAY = 0.7
"""What is left of it after each round."""

# -------------------------------------------------- "Where clients did not answer"

ABSENT_NOISE = 10.0
"""Least expectation of a cell that can be absent, in deviations of a count's noise."""

ABSENT_PART = 0.25
"""Part of the expectation below which such a cell is absent."""

# ------------------------------------ "Selection": a run that chooses its number

TOLERANCE = 0.5
"""Standard errors of a cost by which a gap may be below the largest one."""

LEAST_PARTS = 3
"""Least parts per cluster on average: with fewer, a cost is that of the cells."""

LEAST_COUNT = 16
"""Least records per cluster, over the noise of a cell's count: fewer fit the noise."""

CHOICE_STARTS = 5
"""Starts of each of many clusterings."""

# ----------------------------------------------------- "Bounds on cluster sizes"

STARTS = 3
"""Starts of k-means with bounds on sizes, of which the best is kept."""

FREE_STARTS = 5
"""Starts of k-means without bounds, which gives the first of these."""

START_STEPS = 20
"""Steps of k-means without bounds."""

POINTS_PER_CLUSTER = 200
"""Points per cluster that stand for the records."""

FEWEST_POINTS = 4_000
"""Fewest of these points."""

MOST_POINTS = 20_000
"""Most of these points."""

LEAST_NOISE = 1e-3
"""Least noise of a size, in records, where noise of 0 would be divided by."""
