"""Private clusters of clients, and a model for each."""
