"""Results of a run for users: clusterings, reports, pages."""
