"""What a strategy's report says of a run: taken from its server's proceedings."""

from copy import copy

from flower_kmeans.privacy.report import Report
from flower_kmeans.protocol.server import Server


def update(report: Report, server: Server, seconds: float) -> None:
    """Bring a report up to date with its run; the seconds are those since its start."""
    algorithm = server.run.algorithm
    for name, value in vars(server.proceedings).items():
        setattr(report, name, copy(value))
    report.seconds, report.n_rounds = seconds, server.head
    report.n_clients, report.ledger = server.n_clients, server.all_keep_ledgers
    report.dropped, report.incidents = list(server.dropped), list(server.incidents)
    if server.n_opened:
        report.warnings = tuple(algorithm.notes(server.state))
    if server.n_opened == server.run.document.rounds:
        last = report.noise_factors[-1] if report.noise_factors else 1.0
        report.cost = algorithm.cost_estimate(server.state, last)
