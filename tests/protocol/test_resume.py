"""A server that ends and goes on: rows 57 and 58 of docs/protocol.md, section 10."""

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from documents import TRUSTS
from harness import SIMULATED, without_noise, write_roster
from killing import WHEN, Federation

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.resume import Journal, KeptRun
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, GLloyd

DELTA = 1e-6
BOX = Box([0.0, 0.0], [1.0, 1.0])
N, T = 5, 2
PARTS = np.array_split(np.random.default_rng(3).random((400, 2)), N)
BLIND = ("clients-only", "oblivious-server")
SHARED = ("clients-only", "distributed-noise")


@pytest.fixture
def begin(tmp_path):
    """Return a function that makes strategies of one run, and the federation that takes part."""

    def make(trust, keys="roster", kind=FastLloyd, n_clients=N, **given):
        place = tmp_path / f"{trust}-{keys}-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        policy = dataclasses.replace(SIMULATED, max_attempts=3)
        roster, policies = write_roster(place, n_clients, policy)
        if keys != "roster":
            policies = [policy] * n_clients
        if trust != "plain":
            policies = [
                dataclasses.replace(each, state_dir=place / f"ledger-{i}")
                for i, each in enumerate(policies)
            ]
        options = {
            "n_clusters": 3,
            "domain": BOX,
            "privacy": PrivacyBudget(None if trust == "plain" else 8.0),
            "n_records": 400,
            "n_clients": n_clients,
            "min_clients": n_clients - 1,
            "trust": trust,
            "n_rounds": T,
            **given,
        }
        if keys == "roster" and trust not in ("plain", "trusted-server"):
            options |= {"keys": "roster", "roster_file": roster}
        federation = Federation(PARTS[:n_clients], policies)
        return (
            (lambda **changes: kind(**{**options, **changes})),
            federation,
            place / "run",
        )

    return make


def replies_of(federation, kind):
    """Return what each node sent of a kind, as often as it differs."""
    sent = Counter()
    for item in federation.grid.received:
        if isinstance(item.message, kind):
            sent[item.node_id, item.message] += 1
    return sent


def n_waves(make, federation, directory):
    """Return how many waves of messages a run takes that nobody kills."""
    assert federation.run(make(), directory)
    return federation.grid.n_pushes


@pytest.mark.claim("threat-model", "57")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_57_a_server_that_is_killed_goes_on(begin, trust, keys, when):
    """At every wave of messages: the same sums, one answer and one charge of a round."""
    with without_noise():
        waves = n_waves(*begin(trust, keys))
        make, unharmed, directory = begin(trust, keys)
        assert unharmed.run(make(), directory)
        expected = unharmed.results[0][0]
        for at in range(1, waves + 1):
            make, federation, directory = begin(trust, keys)
            killed, resumed = make(), make()
            assert not federation.run(killed, directory, at, when)
            assert federation.run(resumed, directory)
            assert sorted(federation.results) == list(range(N)), at
            for (result,) in federation.results.values():
                np.testing.assert_array_equal(result.centroids, expected.centroids)
                np.testing.assert_array_equal(result.counts, expected.counts)
            report = resumed.report
            assert (report.attempts, report.answers, report.restarts) == (
                T,
                [N] * T,
                0,
            ), at
            assert report.resumptions == 1
            assert len(replies_of(federation, messages.Answer)) == N * T, at
            if trust in SHARED:
                assert len(replies_of(federation, messages.Added)) == N * T, at
            for policy in federation.policies:
                if policy.state_dir is not None:
                    spent = spent_epsilon(policy.state_dir, report.delta)
                    assert spent == pytest.approx(report.epsilon, rel=1e-6)


@pytest.mark.claim("threat-model", "57")
@pytest.mark.parametrize("trust", TRUSTS)
def test_57_noise_is_added_once(begin, trust):
    """What was released, with its noise, is what the resumed run goes on with."""
    waves = n_waves(*begin(trust))
    make, federation, directory = begin(trust)
    first, resumed = make(), make()
    # the last entry is written
    assert not federation.run(first, directory, waves, "before")
    with Journal(directory) as journal:
        kept, entries = journal.load(KeptRun), journal.entries()
    assert kept.head == T
    assert federation.run(resumed, directory)
    if trust in BLIND:
        assert list(resumed._running._announced.entries) == entries
    else:
        np.testing.assert_array_equal(resumed.centroids, first.centroids)
    (one, *others) = (result for (result,) in federation.results.values())
    for other in others:
        np.testing.assert_array_equal(other.centroids, one.centroids)


class Deaf:
    """Lets one client fail at `ask`, from a moment on."""

    def __init__(self, app, place):
        self.app, self.place, self.is_deaf = app, place, False

    def __call__(self, message, context):
        is_place = int(context.node_config["partition-id"]) == self.place
        if (
            is_place
            and self.is_deaf
            and message.metadata.message_type == "train.kmeans"
        ):
            request = messages.decode_request(from_content(message.content))
            if isinstance(request, messages.Ask):
                raise RuntimeError("down")
        return self.app(message, context)


@pytest.mark.claim("threat-model", "57")
@pytest.mark.parametrize("when", ["unanswered", "answered"])
@pytest.mark.parametrize("trust", SHARED)
def test_57_the_answers_that_were_chosen_are_those_that_are_added(begin, trust, when):
    """Votes are for good: a client that is gone since does not change S."""
    make, federation, directory = begin(trust)
    deaf = federation.grid._client_app = Deaf(federation.grid._client_app, N - 1)
    assert not federation.run(make(), directory, 3, when)  # enrol, ask, add
    deaf.is_deaf = True
    resumed = make()
    assert federation.run(resumed, directory)
    assert resumed.report.answers == [N, N - 1]


def test_57_what_the_server_computes_goes_on_from_the_state_that_it_released(begin):
    """FedDPKMeans: the server's own points and its state after each round."""
    points = np.random.default_rng(5).random((200, 2))
    given = {"kind": FedDPKMeans, "server_data": points, "n_rounds": "auto"}
    with without_noise():
        waves = n_waves(*begin("distributed-noise", **given))
        make, unharmed, directory = begin("distributed-noise", **given)
        assert unharmed.run(make(), directory)
        for at in range(2, waves + 1):
            make, federation, directory = begin("distributed-noise", **given)
            assert not federation.run(make(), directory, at, "answered")
            assert federation.run(make(), directory)
            (result,) = federation.results[0]
            np.testing.assert_array_equal(
                result.centroids, unharmed.results[0][0].centroids
            )


@pytest.mark.parametrize("trust", ["clients-only", "trusted-server"])
def test_57_ranges_are_those_of_the_round_before_the_server_ended(begin, trust):
    wide = Box([-9.0, -9.0], [9.0, 9.0], tighten=0.1)
    given = {"kind": GLloyd, "domain": wide}
    with without_noise():
        waves = n_waves(*begin(trust, **given))
        make, unharmed, directory = begin(trust, **given)
        assert unharmed.run(make(), directory)
        expected = unharmed.results[0][0]
        assert expected.domain.lower[0] > -9
        for at in range(waves - 2, waves + 1):
            make, federation, directory = begin(trust, **given)
            assert not federation.run(make(), directory, at, "answered")
            assert federation.run(make(), directory)
            (result,) = federation.results[0]
            assert result.domain == expected.domain
            np.testing.assert_array_equal(result.centroids, expected.centroids)


@pytest.mark.parametrize(
    "trust",
    ["clients-only", pytest.param("trusted-server", marks=pytest.mark.thorough)],
)
def test_57_a_silhouette_is_that_of_the_result_before_the_server_ended(begin, trust):
    given = {"kind": GLloyd, "quality": True}
    with without_noise():
        waves = n_waves(*begin(trust, **given))
        make, unharmed, directory = begin(trust, **given)
        assert unharmed.run(make(), directory)
        expected = unharmed.results[0][0]
        for at in range(waves - 2, waves + 1):
            make, federation, directory = begin(trust, **given)
            assert not federation.run(make(), directory, at, "answered")
            assert federation.run(make(), directory)
            (result,) = federation.results[0]
            assert (
                result.silhouette.released.counts == expected.silhouette.released.counts
            )
            assert result.silhouette.value == expected.silhouette.value


@pytest.mark.parametrize(
    "trust", ["clients-only", "oblivious-server", "distributed-noise"]
)
def test_a_run_is_resumed_as_often_as_its_server_ends(begin, trust):
    make, federation, directory = begin(trust)
    at = 3  # after the set-up, which begins again
    n_killed = 0
    while not federation.run(make(), directory, at, "answered"):
        n_killed += 1
        at = 2
        assert n_killed < 10
    assert n_killed > 1
    assert sorted(federation.results) == list(range(N))


@pytest.mark.parametrize("trust", [*SHARED, "oblivious-server"])
def test_57_a_client_that_lost_its_memory_meanwhile_renews(begin, trust):
    """Without ledgers and with a new memory: one attempt more, and the run ends well."""
    make, federation, directory = begin(trust, n_rounds=3)
    federation.policies = [
        dataclasses.replace(each, state_dir=None) for each in federation.policies
    ]
    federation.__post_init__()
    assert not federation.run(
        make(), directory, 3 if trust in SHARED else 4, "unanswered"
    )
    federation.grid._contexts[1001].state.clear()
    resumed = make()
    assert federation.run(resumed, directory)
    assert sorted(federation.results) == list(range(5))
    assert resumed.report.restarts >= 1


def test_57_a_sum_that_could_not_be_kept_is_not_seen(begin):
    """The resumed run adds other noise to it: both would be two releases for one charge."""
    make, federation, directory = begin("trusted-server")
    write, seen = Journal.write_closed, []

    def full(self, kept, entry):
        if kept.head == 2:
            raise RunError("full")
        write(self, kept, entry)

    failed = make(on_round=lambda info: seen.append(failed.centroids.copy()))
    with (
        mock.patch.object(Journal, "write_closed", full),
        pytest.raises(RunError, match="full"),
    ):
        federation.run(failed, directory)
    (first,) = seen
    np.testing.assert_array_equal(failed.centroids, first)
    assert failed.report.n_rounds == 1
    assert failed.report.sizes is None
    assert federation.run(make(), directory)


def rename_nodes(grid, places):
    """Give nodes other ids, as a SuperLink does that lost its database."""
    for place in places:
        old = next(
            node
            for node, context in grid._contexts.items()
            if int(context.node_config["partition-id"]) == place
        )
        context = grid._contexts.pop(old)
        context.node_id = old + 1000
        grid._contexts[old + 1000] = context


@pytest.mark.default_cases("clients-only-two", "oblivious-server-all")
@pytest.mark.parametrize("places", [range(N), [0], [1, 3]], ids=["all", "first", "two"])
@pytest.mark.parametrize("trust", [*SHARED, "oblivious-server"])
def test_57_nodes_that_got_other_ids_take_their_places_again(begin, trust, places):
    """With a roster: the open attempt stays the same, and nobody is charged again."""
    waves = n_waves(*begin(trust, n_rounds=3))
    for at in range(2, waves):  # after the last one the run is over for the clients
        make, federation, directory = begin(trust, n_rounds=3)
        assert not federation.run(make(), directory, at, "answered"), at
        rename_nodes(federation.grid, places)
        resumed = make()
        assert federation.run(resumed, directory), at
        assert sorted(federation.results) == list(range(N)), at
        report = resumed.report
        assert (report.attempts, report.answers, report.restarts) == (3, [N] * 3, 0), at
        for policy in federation.policies:
            spent = spent_epsilon(policy.state_dir, report.delta)
            assert spent == pytest.approx(report.epsilon, rel=1e-6)


@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_57_nodes_get_other_ids_as_often_as_the_server_ends(begin, trust):
    """A slot remembers four nodes, and those that are gone make room."""
    make, federation, directory = begin(trust, n_rounds=3)
    assert not federation.run(make(), directory, 3, "answered")  # enrol, ask, add
    for _ in range(6):
        rename_nodes(federation.grid, range(N))
        assert not federation.run(make(), directory, 2, "answered")  # enrol, add
    rename_nodes(federation.grid, range(N))
    assert federation.run(make(), directory)
    assert sorted(federation.results) == list(range(N))


@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_57_a_stranger_does_not_hold_up_a_run_that_goes_on(begin, trust):
    """Once no node of the run is missing, nobody is waited for who may still claim a slot."""
    make, federation, directory = begin(trust)
    strange = dataclasses.replace(SIMULATED, max_attempts=3)
    federation.policies = [*federation.policies, strange]
    federation.partitions = [*federation.partitions, PARTS[0]]
    federation.__post_init__()
    assert not federation.run(make(), directory, 2, "answered")
    resumed, waited = make(), []
    trip = resumed._trip

    def watched(kind, requests, has_enough):
        yield from trip(kind, requests, has_enough)
        waited.append((kind, has_enough()))

    with mock.patch.object(resumed, "_trip", watched):
        assert federation.run(resumed, directory)
    assert waited[0] == ("enrol", True)


# -------------------------------------------------------------------- 58: copies of DIR


@pytest.mark.claim("threat-model", "58")
@pytest.mark.parametrize("trust", TRUSTS)
def test_58_an_older_copy_of_the_directory_is_refused_before_noise_is_drawn(
    begin, trust
):
    waves = n_waves(*begin(trust))
    make, federation, directory = begin(trust)
    assert not federation.run(make(), directory, waves - 1, "unanswered")
    copy = shutil.copytree(directory, directory.with_name("copy"))
    assert federation.run(make(), directory)
    # The clients have the result: for them the run is over.
    before = federation.grid.received.copy()
    stale = make()
    with pytest.raises(RunError, match="an older copy"):
        federation.run(stale, copy)
    new = federation.grid.received[len(before) :]
    assert not any(
        isinstance(each.message, messages.Answer | messages.Added) for each in new
    )
    codes = {
        each.message.code for each in new if isinstance(each.message, messages.Refusal)
    }
    assert codes == {Code.STALE}


@pytest.mark.claim("threat-model", "58")
@pytest.mark.parametrize(
    "trust", ["clients-only", "oblivious-server", "distributed-noise"]
)
def test_58_two_continuations_share_one_answer_and_one_vote_of_a_round(begin, trust):
    make, federation, directory = begin(trust, n_rounds=3)
    first_ask = 2 if trust != "oblivious-server" else 3
    assert not federation.run(make(n_rounds=3), directory, first_ask, "answered")
    copy = shutil.copytree(directory, directory.with_name("copy"))
    for place in (directory, copy):
        with_error = (
            pytest.raises(RunError) if place == copy else contextlib.nullcontext()
        )
        with with_error:
            federation.run(make(n_rounds=3), place)
    assert len(replies_of(federation, messages.Answer)) == N * 3
    if trust in SHARED:
        assert len(replies_of(federation, messages.Added)) == N * 3


def _opened_elsewhere(directory):
    """Return whether another process can use the file of a run."""
    words = "import sqlite3, sys; file = sqlite3.connect(sys.argv[1], timeout=0);"
    words += "file.execute('SELECT * FROM run')"
    command = [sys.executable, "-I", "-c", words, str(directory / "run.sqlite3")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "is locked" in done.stderr, done.stderr
    return done.returncode == 0


def test_58_two_runs_do_not_hold_one_directory(tmp_path):
    """Nor does the second run of a process let another process in."""
    place, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(place)
    with Journal(place):
        assert not _opened_elsewhere(place)
        for name in (place, link):
            with pytest.raises(
                ConfigurationError, match="another run of this process holds"
            ):
                Journal(name)
        assert not _opened_elsewhere(place)
    assert _opened_elsewhere(place)
    with Journal(place):  # of a run that is resumed, before anything is written
        assert not _opened_elsewhere(place)


@pytest.mark.claim("threat-model", "58")
def test_58_two_processes_do_not_hold_one_directory(tmp_path):
    Journal(tmp_path / "run").close()
    other = sqlite3.connect(tmp_path / "run" / "run.sqlite3")
    with contextlib.closing(other):
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match="another process holds"):
            Journal(tmp_path / "run")
    Journal(tmp_path / "run").close()


# ------------------------------------------------------------------------ the directory


def test_a_finished_run_is_not_resumed_and_nothing_of_it_is_left(begin):
    make, federation, directory = begin("clients-only")
    assert federation.run(make(), directory)
    with pytest.raises(
        ConfigurationError, match="has finished: name another directory"
    ):
        federation.run(make(), directory)
    with contextlib.closing(sqlite3.connect(directory / "run.sqlite3")) as file:
        tables = [
            file.execute(query).fetchall()
            for query in (
                "SELECT * FROM run",
                "SELECT * FROM entries",
                "SELECT * FROM parts",
            )
        ]
        assert tables == [[], [], []]
        assert len(file.execute("SELECT * FROM finished").fetchall()) == 1


@pytest.mark.parametrize("trust", ["distributed-noise", "oblivious-server"])
def test_what_a_round_no_longer_needs_is_erased(begin, trust):
    """Sealed shares go when the round is closed, and single answers are never written."""
    make, federation, directory = begin(trust)
    waves = n_waves(*begin(trust))
    assert not federation.run(make(), directory, waves, "before")
    content = (directory / "run.sqlite3").read_bytes()
    for item in federation.grid.received:
        if isinstance(item.message, messages.Answer):
            for part in (item.message.words, item.message.sealed):
                assert not part or part[:48] not in content


def test_what_is_erased_is_not_in_the_files_beside_the_database(tmp_path):
    """Also while the process has the directory, because it may be killed at any moment."""
    shares, place = b"sealed shares" * 1000, tmp_path / "run"
    kept = KeptRun(document=b"document", nodes=None)
    with Journal(place) as journal:
        journal.write_parts(kept, [(slot, shares) for slot in range(N)])
        journal.write_closed(kept, None)
        others = [file for file in place.iterdir() if file.name != "run.sqlite3"]
        # The database itself is read at the end: to close it here would let go of its
        # lock.
        assert not any(shares[:26] in file.read_bytes() for file in others)
    assert shares[:26] not in (place / "run.sqlite3").read_bytes()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_clusters": 4}, "words"),
        ({"n_rounds": 3}, "words"),
        ({"privacy": PrivacyBudget(4.0)}, "privacy"),
        ({"seed": 9}, "body"),
    ],
)
def test_a_run_is_resumed_with_the_options_with_which_it_began(begin, changes, named):
    make, federation, directory = begin("clients-only")
    assert not federation.run(make(), directory, 2, "before")
    sent = len(federation.grid.sent)
    with pytest.raises(ConfigurationError, match=f"differs in .*{named}"):
        federation.run(make(**changes), directory)
    assert len(federation.grid.sent) == sent


def test_a_run_is_resumed_with_the_servers_own_data_with_which_it_began(begin):
    points = np.random.default_rng(5).random((200, 2))
    given = {"kind": FedDPKMeans, "server_data": points, "n_rounds": "auto"}
    make, federation, directory = begin("distributed-noise", **given)
    assert not federation.run(make(), directory, 2, "before")
    with pytest.raises(
        ConfigurationError, match="the server's data with which the run"
    ):
        federation.run(make(server_data=points / 2), directory)
    assert federation.run(make(), directory)


def test_relayed_keys_need_the_named_nodes_of_the_run(begin):
    """Their order gives the slots. With a roster, nodes may have other ids since."""
    make, federation, directory = begin("clients-only", "relayed")
    nodes = list(federation.grid.get_node_ids())
    assert not federation.run(make(nodes=nodes), directory, 2, "before")
    with pytest.raises(ConfigurationError, match="Expected nodes="):
        federation.run(make(nodes=nodes[::-1]), directory)
    assert federation.run(make(nodes=nodes), directory)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of POSIX")
@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path, what):
    place = tmp_path / "run"
    Journal(place).close()
    assert oct(place.stat().st_mode & 0o777) == "0o700"
    assert oct((place / "run.sqlite3").stat().st_mode & 0o777) == "0o600"
    (place if what == "directory" else place / "run.sqlite3").chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"with mode 0[67]00\. Got 0755"):
        Journal(place)


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_file_that_is_no_kept_run(tmp_path, content):
    place = tmp_path / "run"
    Journal(place).close()
    (place / "run.sqlite3").write_bytes(content)
    if content:
        with pytest.raises(ConfigurationError, match="not a database"):
            Journal(place)
    else:
        Journal(place).close()


@pytest.mark.parametrize("table", ["run", "entries"])
def test_a_kept_run_that_cannot_be_read_is_named(begin, table):
    make, federation, directory = begin("clients-only")
    assert not federation.run(make(), directory, 4, "before")  # `ask` of round 2
    with contextlib.closing(sqlite3.connect(directory / "run.sqlite3")) as file, file:
        file.execute(f"UPDATE {table} SET content = x'81'")  # noqa: S608 (the test's own names)
    sent = len(federation.grid.sent)
    with pytest.raises(ConfigurationError, match=r"Expected resume .* cannot be read"):
        federation.run(make(), directory)
    assert len(federation.grid.sent) == sent


def test_a_link_in_place_of_the_file_is_refused(tmp_path):
    place, other = tmp_path / "run", tmp_path / "other"
    place.mkdir(mode=0o700)
    other.touch()
    (place / "run.sqlite3").symlink_to(other)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        Journal(place)


@pytest.mark.parametrize("at", range(1, 4))
def test_a_full_disk_is_an_error_before_anything_is_sent(begin, at):
    """At the n-th write: a run that goes on when there is room again."""
    make, federation, directory = begin("clients-only")
    write, n_writes = Journal._put, 0

    def full(self, kept):
        nonlocal n_writes
        n_writes += 1
        if n_writes == at:
            raise sqlite3.OperationalError("database or disk is full")
        write(self, kept)

    with (
        mock.patch.object(Journal, "_put", full),
        pytest.raises(RunError, match="disk is full"),
    ):
        federation.run(make(), directory)
    kinds = [item.kind for item in federation.grid.sent]
    assert "abort" not in kinds
    assert len(set(kinds)) == at - 1
    assert federation.run(make(), directory)
    assert sorted(federation.results) == list(range(N))
