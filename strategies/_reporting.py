"""What a strategy's report says of a run: taken from its server's proceedings."""

from flower_kmeans.privacy.report import Report
from flower_kmeans.protocol.server import Server


def update(report: Report, server: Server, seconds: float) -> None:
    """Bring a report up to date with its run.

    Parameters
    ----------
    report : Report
    server : Server
    seconds : float
        Since the start of the run.
    """
    proceedings, algorithm = server.proceedings, server.run.algorithm
    report.seconds = seconds
    report.n_clients, report.n_slots = server.n_clients, proceedings.n_slots
    report.n_rounds = server.head
    report.ledger = server.all_keep_ledgers
    report.committee = proceedings.committee
    report.answers = list(proceedings.answers)
    report.noise_factors = list(proceedings.noise_factors)
    report.lost_rounds = list(proceedings.lost_rounds)
    report.attempts, report.repeats = proceedings.attempts, proceedings.repeats
    report.round_trips = proceedings.round_trips
    report.dropped, report.incidents = list(server.dropped), list(server.incidents)
    if server.n_opened:
        report.warnings = tuple(algorithm.notes(server.state))
    if server.n_opened == server.run.document.rounds:
        last = report.noise_factors[-1] if report.noise_factors else 1.0
        report.cost = algorithm.cost_estimate(server.state, last)
