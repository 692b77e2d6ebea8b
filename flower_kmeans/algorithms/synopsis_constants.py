"""The constants of SynopsisKMeans, in the order of docs/guarantees, Theorem 22.

The headings name paragraphs of that theorem. No guarantee depends on a value: fractions
of mu^2 always sum to 1, and everything after the sum is post-processing. Clients of an
oblivious server must have the same values. So a changed value also changes the digests
in tests/algorithms/test_replay.py.

Values were chosen by experiment, on data sets that the tables name: docs/tables/sizes.md
for bounds on sizes, docs/tables/choose-k.md ("Tuning of the rule") for the number of
clusters, and docs/tables/losses.md for all others. D is the largest norm of a record,
and variances are in units of D^2.
"""

# -------------------------------------------- the table: fractions of mu^2 by release

MOMENT_FRACTION = 0.08
"""Fraction of mu^2 for round 1, up to `MOST_ROTATED` columns or without second moments."""

LEAST_WIDE_FRACTION = 0.15
"""Least fraction for second moments of more columns."""

MOST_WIDE_FRACTION = 0.35
"""Largest fraction for second moments of more columns."""

WIDE_EDGE = 0.01
"""Largest eigenvalue of noise that this fraction aims at, in N D^2."""

MOST_SYNOPSIS = 0.55
"""Fraction of all synopsis rounds with at most `FEW_COLUMNS` columns, the largest one."""

LEAST_SYNOPSIS = 0.30
"""Least fraction of all synopsis rounds."""

FEW_COLUMNS = 8
"""With more columns the synopsis gets less, by the fourth root of their number."""

GROWTH = 1.5
"""Fraction of a synopsis round over that of the round before."""

REFINEMENT_COUNTS = 0.4
"""Fraction of a refinement round's counts, over the best fraction for a single mean."""

SIZING_ROUNDS = 4
"""Rounds for sizes alone, in runs with bounds on sizes ("Bounds on cluster sizes")."""

SIZING = 0.10
"""Fraction of all rounds for sizes. The others keep their proportions."""

# ------------------------------------------------------------- "Decided in advance"

FIRST = 1
"""The round of second moments."""

REFINEMENTS = 4
"""Number of Lloyd rounds. Moves are weighted by their noise, so more rounds lose little."""

MORE_REFINEMENTS = 8
"""Number of Lloyd rounds at weak signals, where steps are short, if all directions are live."""

MORE_SIGNAL = 50.0
"""Signal s from which more Lloyd rounds gain too little for their round trips."""

SECOND_ROUND = 6.0
"""Least c for a second round of the synopsis."""

THIRD_ROUND = 14.0
"""Least c for a third round of the synopsis."""

COUNT_DIRECTIONS = 4
"""Number of directions p at which counts get half of a synopsis round ("Sensitivity")."""

COUNT_POWER = 0.2
"""Power of p with which the counts' fraction falls ("Sensitivity")."""

CELL_COUNT = 1.0
"""Wanted records of a cell, in standard deviations of its count's noise."""

FEWEST_CELLS = 2
"""Least number of cells per cluster."""

MOST_CELLS = 5
"""Largest number of cells per cluster."""

CLEAR_MOMENTS = 0.35
"""Largest noise of second moments: of the largest eigenvalue, in N D^2."""

MOST_COLUMNS = 2048
"""Most columns with second moments. More would exceed the words of a message."""

MOST_GROUPS = 128
"""Most groups of columns, where messages cannot carry second moments of all columns."""

FEWEST_GROUPS = 16
"""Fewest groups of columns. Where messages cannot carry them, directions are random."""

MOST_DIRECTIONS = 64
"""Most directions of a synopsis with second moments."""

BLIND_DIRECTIONS = 16
"""Most directions of a synopsis without second moments."""

FEWEST_LIVE = 16
"""Fewest live directions with second moments, clear or not."""

ALL_LIVE_COLUMNS = 32
"""Most columns that are all live."""

ALL_LIVE_SIGNAL = 32.0
"""Signal s from which all directions are live, if they are as many as the columns."""

MANY_CLUSTERS = 0.5
"""Clusters per column from which all directions are live, up to `MOST_ROTATED` columns."""

ANY_CLUSTERS = 1, 20
"""Fewest and most clusters of a run whose user gives no number."""

MOST_CHOSEN = 100
"""Most clusters of a run that chooses. Comparing more takes minutes in an update."""

MOST_BOUNDED = 256
"""Most clusters with bounds on sizes. Finding more weights takes minutes in an update."""

# ----------------------------------------- "The same on every processor": integers

REAL_BITS = 52
"""Fractional bits of reals in a state: lengths and variances in units of D."""

TOTAL_BITS = 16
"""Fractional bits of the number of records of a mixture in a state."""

MODEL_BITS = 16
"""Fractional bits of points of a mixture."""

WEIGHT_BITS = 26
"""Bits of the sum of a mixture's weights, if they are rounded to integers."""

DIVIDED_BITS = 16
"""Further bits of a weight that is divided among points."""

DOUBT_BITS = 50
"""Fractional bits of variances of noise in sums."""

MASS_BITS = 40
"""Bits of the first masses of all planned records together."""

MOVE_BITS = 24
"""Fractional bits of a move that is projected."""

SMALLEST = 1e-12
"""Least variance to divide by. It is below the square of a grid step."""

# ----------------------------------------------------------------- "Second moments"

PRIOR_NORM = 0.25
"""Expected mean squared norm of the records before round 1."""

PRIOR_SPREAD = 0.2
"""Standard deviation of this expectation."""

LEAST_NORM = 0.0005
"""Least mean squared norm."""

NOISE_NORM = 0.3
"""Least mean squared norm, in standard deviations of its noise."""

MOST_NORM_NOISE = 0.02
"""Largest noise that raises the least norm."""

CLEAR = 1.1
"""Least eigenvalue that counts, over the largest eigenvalue of noise alone."""

LEAST_REST = 0.02
"""Least fraction of the norm for directions without a clear eigenvalue."""

LEAST_VARIANCE = 1e-7
"""Least variance of a direction."""

UNUSED_VARIANCE = 1e-9
"""Variance of a direction that is not live, which nothing is projected on."""

HEAVY_PART = 0.2
"""Fraction of the first model's records that are spread more widely."""

HEAVY_SCALE = 3.0
"""Standard deviation of these records, over the standard deviation of the others."""

# -------------------------------------------------------------------------- "Cells"

LEAST_SAMPLE = 2_000
"""Least number of sampled points of the model from which cells are made."""

POINTS_PER_CELL = 10
"""Points per cell, if that is more than the least number."""

MOST_POINTS_PER_CELL = 20
"""Most points per cell, even if that is less than the least number."""

PARTITION_STEPS = 6
"""Steps of k-means that make cells."""

PSEUDO_POINTS = 5.0
"""Points with the variance of all cells that are added to each cell for its variance."""

LEAST_SPREAD = 0.64
"""Least variance for a cell's radius, over the variance of all cells."""

LEAST_FACTOR = 1.0
"""Least radius rho, in root mean squares of the lengths that it clips."""

MOST_FACTOR = 2.6
"""Largest radius rho of cells."""

FACTOR_START = 0.7
"""Radius rho at the signal s = 1."""

FACTOR_GROWTH = 0.3
"""Growth of rho with the logarithm of s."""

FREE_FACTOR = 0.01
"""Radius rho of refinements over the signal s, if that is longer: it costs about 0.001."""

LONGEST_FACTOR = 20.0
"""Largest radius rho of refinements at any signal."""

STEPS_PER_FACTOR = 2.0**-6
"""This radius rho over the steps of a radius: a root mean square has 64 steps or more."""

LEAST_SIGNAL = 0.1
"""Least signal s in the formula of rho."""

MOST_SIGNAL = 1e6
"""Largest signal s in the formula of rho. Without noise s is infinite."""

# -------------------------------------------------------------------------- "Model"

LEAST_POOLED = 0.02
"""Least variance within all cells, over the variance of the model before."""

MOST_POOLED = 4
"""Largest variance within all cells, over the variance of the model before."""

LEAST_OWN = 0.05
"""Least variance within one cell, over the variance within all cells."""

MOST_OWN = 6
"""Largest variance within one cell, over the variance of the model before."""

# ---------------------------------------------------------------------- "Selection"

MOST_STARTS = 25
"""Most starts of weighted k-means on a mixture's means."""

FEWEST_STARTS = 5
"""Fewest starts."""

START_WORK = 2**22
"""Distances computed in all starts. With hundreds of clusters one start takes seconds."""

SELECT_STEPS = 8
"""Steps of weighted k-means on the means."""

POLISH_PAIRS = 5_000
"""Pairs of points of a mixture on which k-means continues."""

MOST_PAIRS_PER_CELL = 20
"""Most pairs of points per part."""

POLISH_STEPS = 12
"""Lloyd steps on these points."""

SELECTIONS = 8
"""Most selections, of which the best counts."""

SELECTION_WORK = 20_480
"""Selections times k (p + 16): 4 for 64 clusters in 64 directions, less than a second."""

SELECTION_WIDTH = 16
"""Directions that take as long as what a selection does once for each cluster."""

JUDGED_POINTS = 4_000
"""Points of a mixture by which selections are compared."""

# --------------------------------------------------------------------- "Refinement"

RADIUS_FACTOR = 0.9
"""Radius over the radius of the synopsis, for the same mean square."""

LEAST_RADIUS2 = 0.15
"""Least mean square for a radius, over the first mean square."""

DRIFT = 0.3
"""Variance of a centroid for other reasons than noise, over the variance of its records."""

DRIFT_DECAY = 0.7
"""Factor of this variance after each round."""

CLEAR_DRIFT_DECAY = 0.5
"""The same factor for clusters with a clear signal, which come to rest sooner."""

CLEAR_SIGNAL = 16.0
"""Signal S n/(N sqrt(d)) of a cluster of n records from which it is clear."""

LEAST_BESIDE = 1e-3
"""Least scale of the doubts beside the live directions, which moves teach."""

# -------------------------------------------------- "Where clients did not answer"

ABSENT_NOISE = 10.0
"""Least expected records of a cell that can be absent, in deviations of a count's noise."""

ABSENT_PART = 0.25
"""A cell with less than this fraction of its expected records is absent."""

# ------------------------------------ "Selection": a run that chooses its number

TOLERANCE = 0.5
"""Standard errors of a cost by which the chosen gap may be below the largest gap."""

LEAST_PARTS = 3
"""Least parts per cluster on average. With fewer, the cost measures cells, not clusters."""

LEAST_COUNT = 16
"""Least records per cluster, over the noise of a cell's count. Fewer would fit noise."""

CHOICE_STARTS = 5
"""Starts of each of many clusterings."""

# ----------------------------------------------------- "Bounds on cluster sizes"

STARTS = 3
"""Starts of k-means with bounds on sizes, of which the best is kept."""

FREE_STARTS = 5
"""Starts of k-means without bounds, which gives the first of these starts."""

START_STEPS = 20
"""Steps of k-means without bounds."""

POINTS_PER_CLUSTER = 200
"""Points per cluster that stand for the records."""

FEWEST_POINTS = 4_000
"""Fewest of these points."""

MOST_POINTS = 20_000
"""Most of these points."""

LEAST_NOISE = 1e-3
"""Least noise of a size, in records, for divisions by the noise."""
