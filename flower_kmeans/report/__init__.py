"""What users receive of a run: clusterings, reports, pages."""
