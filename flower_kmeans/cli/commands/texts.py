"""Help of options that several commands have."""

DATA = (
    "A csv, npy, npz, parquet or Excel file, a database (with --query), or a source.toml that "
    "names one."
)
DOMAIN = "A domain.toml, which declares columns and public bounds: flower-kmeans domain init."
DOMAIN_OF_RUN = "The domain.toml of the run, where its centroids.npz does not have it."
