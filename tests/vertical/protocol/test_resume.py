"""The server of a vertical run that ends and goes on: rows 57 and 58 of the attacks."""

import dataclasses

import numpy as np
import pytest
from killing import WHEN, Federation
from vertical_runs import POLICY, blobs, straight_signs

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.resume import Journal
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.strategies import FastLloyd, VerticalKMeans
from flower_kmeans.vertical.protocol.kept import KeptRelay
from flower_kmeans.vertical.protocol.messages import Sent

pytestmark = pytest.mark.usefixtures("quiet")

N = 400
T = 2


@pytest.fixture(autouse=True)
def quick():
    with straight_signs():
        yield


@pytest.fixture
def begin(tmp_path):
    """Return a function that makes strategies of one run, and the parties that take part."""

    def make(widths=(1, 1), **given):
        place = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        d = sum(widths)
        scale = np.arange(1.0, d + 1)
        parts = np.split(blobs(N, d), np.cumsum(widths)[:-1], axis=1)
        policies = []
        for slot in range(len(widths)):
            own = place / f"party-{slot}"
            own.mkdir(parents=True)
            policy = dataclasses.replace(
                POLICY, state_dir=own / "ledger", work_dir=own / "work", party=slot
            )
            policies.append(policy)
        options = {
            "n_clusters": 2,
            "domain": Box([0.0] * d, scale),
            "privacy": PrivacyBudget(8.0, 1e-6),
            "n_records": N,
            "parties": widths,
            "n_rounds": T,
            "radius": False,
            "initial": np.array([[0.3], [0.7]]) * scale,
            **given,
        }
        federation = Federation(parts, policies)
        return (
            (lambda **changes: VerticalKMeans(**{**options, **changes})),
            federation,
            place / "r",
        )

    return make


def kinds(federation):
    """Return the waves of messages by kind, in their order, each once."""
    found = []
    for item in federation.grid.sent:
        name = getattr(item.message, "step", item.kind)
        if not found or found[-1] != name:
            found.append(name)
    return found


def spent(federation):
    """Return what each party's ledger holds."""
    return [
        spent_epsilon(policy.state_dir, 1e-6) or 0.0 for policy in federation.policies
    ]


@pytest.mark.claim("threat-model", "57")
@pytest.mark.default_cases("widths0-answered")
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("widths", [(1, 1), (1, 1, 1)])
def test_57_a_vertical_server_that_is_killed_goes_on(begin, widths, when):
    """After the set-up the same run goes on; during it, it is aborted and begins again."""
    make, unharmed, directory = begin(widths)
    assert unharmed.run(make(), directory)
    waves, order = unharmed.grid.n_pushes, kinds(unharmed)
    first_round = waves - 2 * T - 1  # the wave of the first `step`
    assert order.count("step") == T
    (one_charge,) = {round(each, 9) for each in spent(unharmed)}
    for at in range(2, waves + 1):
        make, federation, directory = begin(widths)
        killed, resumed = make(), make()
        assert not federation.run(killed, directory, at, when)
        before = spent(federation)
        assert federation.run(resumed, directory), at
        assert sorted(federation.results) == list(range(len(widths)))
        (one, *others) = (result for (result,) in federation.results.values())
        for other in others:
            np.testing.assert_array_equal(one.centroids, other.centroids)
        aborted = {
            item.node_id for item in federation.grid.sent if item.kind == "abort"
        }
        if at >= first_round:
            assert not aborted, at
            assert resumed.report.resumptions == 1
            assert killed.report.run == resumed.report.run
            np.testing.assert_allclose(spent(federation), one_charge, rtol=1e-6)
        else:
            assert len(aborted) == len(widths), at
            assert killed.report.run != resumed.report.run
            # What the first run had charged stays charged, and nothing more.
            assert all(
                now >= each for now, each in zip(spent(federation), before, strict=True)
            )
            if before == [0.0] * len(widths):
                np.testing.assert_allclose(spent(federation), one_charge, rtol=1e-6)


def test_57_parties_open_what_they_opened_before(begin):
    """A resumed round gives the same bytes: no second ciphertext is decrypted for one round."""
    make, federation, directory = begin()
    waves = begin_waves(begin)
    assert not federation.run(make(), directory, waves - 2, "answered")
    assert federation.run(make(), directory)
    opened = [
        item.message
        for item in federation.grid.received
        if isinstance(item.message, Sent)
    ]
    shares = {
        bytes(each.parcels[0].data)
        for each in opened
        if each.parcels and each.parcels[0].step == "open"
    }
    assert len(shares) == T


def test_an_error_after_the_set_up_leaves_the_run_to_be_resumed(begin):
    """Parties are not told that it is over: the party that failed may be mended."""
    make, federation, directory = begin()
    app, is_broken = federation.grid._client_app, True

    def failing(message, context):
        request = messages.decode_request(from_content(message.content))
        if is_broken and getattr(request, "step", "") == "open":
            raise RuntimeError("down")
        return app(message, context)

    federation.grid._client_app = failing
    with pytest.raises(RunError, match=r"from party 1 to 'open'.* start again"):
        federation.run(make(), directory)
    assert not [item for item in federation.grid.sent if item.kind == "abort"]
    is_broken = False
    assert federation.run(make(), directory)
    assert sorted(federation.results) == [0, 1]


def test_a_finished_vertical_run_leaves_nothing_and_its_directory_is_not_used_again(
    begin,
):
    make, federation, directory = begin()
    assert federation.run(make(), directory)
    with pytest.raises(ConfigurationError, match="has finished"):
        federation.run(make(), directory)


def test_a_run_of_the_other_kind_is_refused(begin, tmp_path):
    make, federation, directory = begin()
    assert not federation.run(make(), directory, 2, "before")
    budget = PrivacyBudget(8.0, 1e-6)
    other = FastLloyd(
        2, Box([0.0], [1.0]), budget, N, n_clients=2, trust="trusted-server", n_rounds=2
    )
    with pytest.raises(ConfigurationError, match="Got one of another"):
        federation.run(other, directory)


def test_what_lies_in_the_mailboxes_is_sealed(begin):
    """A reader of the directory has what the network saw."""
    make, federation, directory = begin()
    assert not federation.run(make(), directory, begin_waves(begin) - 2 * T, "before")
    with Journal(directory) as journal:
        kept = journal.load(KeptRelay)
        parts = list(journal.parts())
    assert kept.is_set_up
    sealed = [
        parcel.data
        for item in federation.grid.received
        if isinstance(item.message, Sent)
        for parcel in item.message.parcels
    ]
    assert parts
    for _, content in parts:
        assert any(data in content for data in sealed)


def begin_waves(begin):
    """Return how many waves of messages an unharmed run takes."""
    make, unharmed, directory = begin()
    assert unharmed.run(make(), directory)
    return unharmed.grid.n_pushes
