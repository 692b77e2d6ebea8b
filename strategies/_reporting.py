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
    proceedings, run = server.proceedings, server.run
    rounds = range(1, server.head + 1)
    report.seconds = seconds
    report.n_clients, report.n_slots = server.n_clients, proceedings.n_slots
    report.n_rounds = server.head
    report.ledger = server.all_keep_ledgers
    report.answers = [proceedings.survivors.get(t, 0) for t in rounds]
    report.noise_factors = [factor for _, factor in sorted(proceedings.noise_factors.items())]
    report.lost_rounds = list(proceedings.lost_rounds)
    report.attempts = server.head + proceedings.attempts
    report.repeats, report.round_trips = proceedings.repeats, proceedings.round_trips
    report.dropped, report.incidents = list(server.dropped), list(server.incidents)
    if server.n_opened:
        report.warnings = tuple(run.algorithm.notes(server.state))
    if server.n_opened == run.document.rounds:
        last = report.noise_factors[-1] if report.noise_factors else 1.0
        report.cost = run.algorithm.cost_estimate(server.state, last)
