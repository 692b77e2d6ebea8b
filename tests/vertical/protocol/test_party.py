"""Vertical runs of real parties: results, restarts, charges, and what a server sees.

By default their signs are straight (`straight_signs`). tests/vertical has real ones of
a step, and tests/simulation/test_vertical.py of a whole run.
"""

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
from cohorts import Cohort, Node
from documents import make_document as make_horizontal
from harness import byte_p_value
from soft import soft_members
from vertical_runs import (
    N_RECORDS,
    Forged,
    Relay,
    blobs,
    code_of,
    interrupted,
    make_algorithm,
    make_document,
    make_parties,
    make_run,
    straight_signs,
)

from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Box
from flower_kmeans.privacy.ledger import Ledger, spent_epsilon
from flower_kmeans.privacy.noise import draw_share
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import limits, messages
from flower_kmeans.protocol.leftovers import erase_ended, work_dir
from flower_kmeans.protocol.messages import (
    Abort,
    Code,
    Enrol,
    Finished,
    decode_reply,
    decode_request,
    read_head,
)
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.run import (
    Horizontal,
    UnacceptableRunError,
    open_run,
    verify_plan,
)
from flower_kmeans.protocol.session import forget_unfinished
from flower_kmeans.protocol.wire import decode, encode, encode_arrays
from flower_kmeans.secagg.primitives import u32
from flower_kmeans.vertical.keys import secret_key, set_up_secret
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.body import Vertical
from flower_kmeans.vertical.protocol.messages import (
    Delivery,
    Joined,
    Sent,
    Turn,
    read_receivers,
)
from flower_kmeans.vertical.protocol.party_session import Progress
from flower_kmeans.vertical.ring import unpack
from flower_kmeans.vertical.store import Store


@pytest.fixture(
    scope="module",
    autouse=True,
    params=["straight", pytest.param("real", marks=pytest.mark.thorough)],
)
def kind_of_signs(request):
    with straight_signs() if request.param == "straight" else nullcontext():
        yield


# ------------------------------------------------------------------------------ runs


@dataclass
class Story:
    """A run that is over, with the sessions as they were before its first round."""

    relay: Relay
    table: np.ndarray
    sessions: dict = field(default_factory=dict)
    copies: dict = field(default_factory=dict)
    spent: dict = field(default_factory=dict)

    @property
    def run(self):
        return self.relay.run

    @property
    def parties(self):
        return self.relay.parties

    def note(self, name):
        """Keep what the ledgers say now, and the sessions."""
        self.spent[name] = [spent_epsilon(p.directory, 1e-6) for p in self.parties]
        self.sessions = {i: p.session(self.run) for i, p in enumerate(self.parties)}

    def turns(self):
        """Yield all turns with their slots and replies."""
        for slot, data, reply in self.relay.seen:
            request = decode_request(data)
            if isinstance(request, Turn):
                yield slot, request, decode_reply(reply)

    def of(self, slot, step, t=0):
        """Return the first request and reply of a slot's step."""
        wanted = slot, step, t
        return next((q, r) for i, q, r in self.turns() if (i, q.step, q.t) == wanted)

    def as_slot(self, slot):
        """Return a party that a test plays with a slot's own secrets."""
        return Forged(self.run, slot, self.sessions[slot])

    def secret(self, slot):
        """Return what a slot's keys, masks and noise follow from."""
        session = self.sessions[slot]
        fresh = decode(session.party, Progress).fresh
        if not fresh:
            return session.secret
        return set_up_secret(session.secret, fresh, self.run.doc_hash)

    def c1(self, t):
        """Return what the holders opened in a round, from its parcel and slot 1's secrets."""
        (delivery,) = self.of(1, "open", t)[0].deliveries
        q0 = moduli(2, self.run.algorithm.radius).q0
        n_values = self.run.document.words[0]
        sender = self.relay.server.parties[0].public
        data = self.as_slot(1).open(sender, delivery, n_values * 2**15 * 6)
        return unpack(data, (q0,), (n_values,))[:, 0]


@pytest.fixture(scope="module")
def story(kind_of_signs, tmp_path_factory):
    """Two parties, two rounds; every request is repeated, each to a new process."""
    ids = [f"customer {i}" for i in range(N_RECORDS)]
    parties = make_parties(tmp_path_factory.mktemp("two"), blobs(), ids=ids)
    relay = Relay(make_run(check_ids=True), parties, repeats=True)
    story = Story(relay, blobs())
    relay.enrol()
    story.note("enrolled")
    relay.do([1], "ids")
    relay.do([0], "ids")
    relay.do([1], "keys")
    story.note("set up")
    relay.take("step")
    story.note("one round")
    copies = tmp_path_factory.mktemp("copies")
    story.copies = {i: party.copied(copies / str(i)) for i, party in enumerate(parties)}
    relay.take("step")
    story.note("two rounds")
    relay.take("close")
    story.spent["over"] = [spent_epsilon(p.directory, 1e-6) for p in parties]
    return story


@pytest.mark.claim("protocol", "request-at-most-1")
@pytest.mark.parametrize("name", ["story", "one_holder", "joint"])
def test_turns_and_their_replies_are_as_long_as_planned(name, request):
    story = request.getfixturevalue(name)
    n_parcels, most = 0, {}
    for slot, data, reply in story.relay.seen:
        asked, sent = decode_request(data), decode_reply(reply)
        listed = sent.parcels if isinstance(sent, Sent) else ()
        step = slot, asked.step if isinstance(asked, Turn) else ""
        if listed and asked.part == 1 < sent.parts:  # as long as the story had it
            most[step] = sum(len(each.data) - 16 for each in listed)
        with mock.patch.object(parcels, "_MAX_PART", most.get(step, 240 * 10**6)):
            limit = limits.reply_limit(story.run, asked)
        assert len(reply) <= limit <= len(reply) + limits.SHORT + 128 * len(listed)
        n_parcels += len(listed)
        if isinstance(asked, Turn):
            assert len(data) <= limits.request_limit(story.run, read_head(data))
    assert n_parcels >= 8


def test_a_turn_that_brings_more_than_planned_is_not_decoded(story, monkeypatch):
    party, run = (
        story.parties[0].copied(story.parties[0].directory.with_name("limits")),
        story.run,
    )
    deliveries = (Delivery(sender=1, step="open", key=bytes(48), data=bytes(2**21)),)
    turn = Turn(doc_hash=run.doc_hash, step="step", t=2, deliveries=deliveries)
    monkeypatch.setattr(messages, "decode_request", lambda data: pytest.fail("decoded"))
    assert code_of(party.ask(turn)) == Code.STALE  # of this run, which is over
    party = story.copies[0].copied(
        story.parties[0].directory.with_name("limits-before")
    )
    assert code_of(party.ask(turn)) == Code.BAD_MESSAGE


def noise_shares(story, t):
    """Return the noise shares of party 0 and the holders in a round, (H + 1, k, 1 + d), records."""
    run, c1 = story.run, story.c1(t)
    algorithm, (release,) = run.algorithm, run.plan.rounds[t - 1]
    places, unit = algorithm.layout(t).places, moduli(2, algorithm.radius).unit
    words = np.concatenate([places[name] for name in release.blocks])
    units = sensitivities(algorithm, t)[words] * 2.0**-algorithm.fraction_bits * unit
    found = []
    for slot in range(run.document.body.n_noisy):
        stream = Stream(
            secret_key(story.secret(slot), run.doc_hash, b"noise " + u32(t), c1)
        )
        noise = np.zeros(algorithm.layout(t).n_words, dtype=np.int64)
        noise[words] = draw_share(release, units, run.document.noise_shares, stream)
        blocks = algorithm.layout(t).unflatten(noise).blocks
        found.append(np.column_stack([blocks[COUNTS], blocks[SUMS]]) / unit)
    return np.stack(found)


def same_run_in_the_clear(story):
    """Return centroids and counts of the same run on all columns, under the same noise."""
    algorithm = story.run.algorithm
    domain, bits = algorithm.domain, algorithm.fraction_bits
    X = domain.quantise(domain.to_unit(story.table), bits) * 2.0**-bits
    state = algorithm.initial_state(None)
    for t in range(1, algorithm.n_rounds + 1):
        grid = algorithm.query(state).arrays["centroids"]
        C, radius = (
            grid * 2.0**-bits,
            algorithm.reach * 2.0**-bits if algorithm.radius else None,
        )
        members = soft_members(X, C, domain.half_widths, radius)
        counts, sums = members.sum(0), members.T @ X
        if algorithm.radius:
            sums -= counts[:, None] * C  # offsets
        sums = np.column_stack([counts, sums]) + noise_shares(story, t).sum(0)
        words = np.rint(sums * 2**bits).astype(np.int64)
        state = algorithm.update(
            state, Statistic({SUMS: words[:, 1:], COUNTS: words[:, 0]})
        )
    return algorithm.centroids(state), algorithm.counts(state)


def assert_same_result(story):
    centroids, counts = same_run_in_the_clear(story)
    for party in story.parties:
        (result,) = party.results
        np.testing.assert_allclose(result.centroids, centroids, atol=2e-4)
        np.testing.assert_allclose(result.counts, counts, atol=0.01)
        assert result.run == story.run.document.run.hex()


def story_of(directory, widths, *set_up, **options):
    """Return a run of one round that is over.

    ``set_up`` are steps, their slots, and how many parcels the first slot sends in one
    message.
    """
    table = blobs(d=sum(widths), seed=3)
    run = make_run(widths, make_algorithm(widths, n_rounds=1, **options))
    relay = Relay(run, make_parties(directory, table, widths))
    relay.enrol()
    for step, slots, n_parcels in set_up:
        most = sum(
            each.n_bytes for each in parcels.planned(run, slots[0], step)[:n_parcels]
        )
        with mock.patch.object(parcels, "_MAX_PART", most):
            relay.do(slots, step)
    story = Story(relay, table)
    story.note("set up")
    relay.take("step")
    relay.take("close")
    return story


@pytest.fixture(scope="module")
def one_holder(kind_of_signs, tmp_path_factory):
    """Three parties, one with the key; records within a radius, several messages, one scale."""
    domain = Box([0.0] * 4, [1.0, 2.0, 3.0, 4.0], scale="common")  # half widths below 1
    steps = ("keys", [1], 2), ("encrypt", [2], 0)
    directory = tmp_path_factory.mktemp("three")
    return story_of(directory, (2, 1, 1), *steps, radius=True, domain=domain)


@pytest.fixture(scope="module")
def joint(kind_of_signs, tmp_path_factory):
    """Three parties, two of which hold the key together; slot 1 joins in two messages."""
    steps = ("keys", [1, 2], 2), ("join", [1, 2], 4)
    return story_of(tmp_path_factory.mktemp("joint"), (1, 1, 1), *steps, key_holders=2)


@pytest.mark.claim("vertical", "centroids-those-k-means")
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("story", {}),
        # The holder's keys and its columns; each column of the other.
        ("one_holder", {(1, "keys"): 2, (2, "encrypt"): 2}),
        ("joint", {(1, "join"): 2}),
    ],
)
def test_parties_get_what_plaintext_gives_under_the_same_noise(name, parts, request):
    story = request.getfixturevalue(name)
    assert_same_result(story)
    assert {(i, q.step): r.parts for i, q, r in story.turns() if r.parts > 1} == parts


@pytest.mark.claim("guarantees", "32")
def test_every_party_adds_another_noise_share(story):
    for t in (1, 2):
        shares = noise_shares(story, t)
        assert (np.abs(shares) > 0).all()
        assert not np.isclose(shares[0], shares[1]).any()


@pytest.mark.claim("protocol", "message-holds-at-most")
@pytest.mark.parametrize("name", ["story", "one_holder", "joint"])
def test_parcels_are_those_that_the_plan_lists(name, request):
    story = request.getfixturevalue(name)
    found, delivered = defaultdict(list), defaultdict(set)
    for slot, turn, sent in story.turns():
        turn_of = slot, turn.step, turn.t
        found[turn_of] += [
            (p.number, read_receivers(p.receivers), len(p.data) - 16)
            for p in sent.parcels
        ]
        delivered[turn_of] |= {
            (d.sender, d.step, d.t, d.number) for d in turn.deliveries
        }
    for turn_of, listed in found.items():
        planned = parcels.planned(story.run, *turn_of)
        assert [(p.number, p.receivers, p.n_bytes) for p in planned] == listed
    delivered[0, "step", 1] |= delivered.pop((0, "load", 0), set())
    for turn_of, names in delivered.items():
        assert names == {due[:4] for due in parcels.due(story.run, *turn_of)}
    assert {slot for slot, _, _ in found} == set(range(len(story.parties)))


# ----------------------------------------------------------------------------- restarts


@pytest.mark.claim("protocol", "repeated-request-gets-same")
def test_an_interrupted_step_is_done_again_with_the_same_bytes(story, tmp_path):
    """The process ends after it has computed, and before its session is written."""
    for slot, step in ((0, "step"), (1, "open")):
        request, reply = story.of(slot, step, 2)
        party = story.copies[slot].copied(tmp_path / str(slot))
        for _ in range(2):
            with interrupted(party):
                assert encode(party.ask(request)) == encode(reply)


def test_a_result_that_nobody_kept_is_delivered_again(story, tmp_path):
    party = story.copies[1].copied(tmp_path / "1")
    party.ask(story.of(1, "open", 2)[0])
    request, reply = story.of(1, "finish")
    party.is_failing = True
    assert party.ask(request) == reply
    assert party.results == []
    party.is_failing = False
    assert [party.ask(request) for _ in range(2)] == [reply] * 2
    (result,) = party.results
    np.testing.assert_array_equal(
        result.centroids, story.parties[1].results[0].centroids
    )


@pytest.mark.claim("threat-model", "V18")
def test_a_file_that_changed_ends_the_run(story, tmp_path):
    party = story.copies[0].copied(tmp_path / "copy")
    (directory,) = (party.directory / "vertical").iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    (directory / "relin").write_bytes(b"another key")
    assert code_of(party.ask(story.of(0, "step", 2)[0])) == Code.INTERNAL


# ------------------------------------------------------------------------------ charges


@pytest.mark.claim("vertical", "each-ledger-charges-whole")
def test_every_party_charges_the_plan_once_with_its_first_answer_about_records(story):
    whole = pytest.approx(story.run.plan.epsilon())
    later = dict.fromkeys(("one round", "two rounds", "over"), [whole] * 2)
    assert story.spent == {"enrolled": [0, 0], "set up": [0, whole], **later}
    assert whole == 8.0


@pytest.mark.claim("vertical", "each-ledger-charges-whole")
@pytest.mark.parametrize("slot", [0, 1])
def test_what_an_aborted_run_charged_stays_charged(story, tmp_path, slot):
    party = story.copies[slot].copied(tmp_path / "copy")
    abort = Abort(doc_hash=story.run.doc_hash)
    spent = spent_epsilon(party.directory, 1e-6)
    for _ in range(2):
        assert party.ask(abort) == Sent(doc_hash=story.run.doc_hash)
    assert spent_epsilon(party.directory, 1e-6) == spent
    assert not list(party.directory.glob("vertical/*"))
    assert secrets_in(party, story.sessions[slot]) == []
    request, _ = story.of(slot, "step" if slot == 0 else "open", 2)
    assert code_of(party.ask(request)) == Code.STALE
    assert code_of(party.ask(Enrol(doc=story.run.data))) == Code.STALE


@pytest.mark.claim("threat-model", "61")
def test_an_abort_of_a_run_that_cannot_be_opened_erases_everything(story, tmp_path):
    run = story.run
    party = story.copies[0].copied(tmp_path / "copy")
    assert list(party.directory.glob("vertical/*"))
    with Ledger(party.directory) as ledger:
        version, data = ledger.load(run.doc_hash)
        other = data.replace(b"flower-kmeans/3", b"flower-kmeans/2")
        assert other != data
        ledger.save(run.doc_hash, version, other)
    for _ in range(2):
        assert party.ask(Abort(doc_hash=run.doc_hash)) == Sent(doc_hash=run.doc_hash)
    assert not list(party.directory.glob("vertical/*"))
    assert secrets_in(party, story.sessions[0]) == []


@pytest.mark.parametrize("step", ["close", "finish"])
def test_a_turn_for_a_run_over_records_that_is_over_is_late(step, tmp_path):
    """A client that takes part in both kinds of runs was delivered the result of another kind."""
    cohort = Cohort(tmp_path, "plain").set_up()
    node = cohort.nodes[0]
    node.policy = replace(node.policy, trusts=("plain", "vertical"))
    good = encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.zeros(2)})
    finished = Finished(doc_hash=cohort.doc_hash)
    assert node.send(cohort.finish_of(0, result=good)) == finished
    turn = Turn(doc_hash=cohort.doc_hash, step=step, t=1)
    assert code_of(node.send(turn)) == Code.STALE


def test_what_a_run_that_was_forgotten_leaves_is_removed(story, tmp_path):
    party = story.copies[0].copied(tmp_path / "copy")
    assert len(list(party.directory.glob("vertical/*/*"))) > 3
    with Ledger(party.directory) as ledger:
        erase_ended(party.policy, ledger)
        assert list(party.directory.glob("vertical/*"))
        assert forget_unfinished(ledger) == 1
        erase_ended(party.policy, ledger)
    assert not list(party.directory.glob("vertical/*"))
    assert spent_epsilon(party.directory, 1e-6) == story.spent["over"][0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_files_of_a_run_that_the_ledger_dropped_are_removed(tmp_path, is_shared):
    """A ledger keeps few runs that gave nothing: a server could fill the disk of party 0 with them.

    In a work_dir beside it another ledger's runs may lie.
    """
    run = make_run()
    work = {"work_dir": tmp_path / "work"} if is_shared else {}
    party = make_parties(tmp_path, blobs(), **work)[0]
    unknown = work_dir(party.policy, "vertical") / ("0" * 64)
    Store(unknown).write("column-1-0-0", [b"1"])
    assert isinstance(party.ask(Enrol(doc=run.data)), Joined)
    assert unknown.exists() == is_shared


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o1777])
def test_party_0_takes_part_only_with_a_work_dir_that_is_its_own(
    tmp_path, bits, caplog
):
    """Others could place a link there, under the name of a run that they see."""
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(bits)
    party = make_parties(tmp_path, blobs(), work_dir=work)[0]
    reply = party.ask(Enrol(doc=make_run().data))
    if bits == 0o700:
        assert isinstance(reply, Joined)
        return
    assert code_of(reply) == Code.INTERNAL  # its own log says why
    assert f"work_dir {work} with mode 0700. Got {bits:04o}" in caplog.text
    assert not list(work.iterdir())


def test_the_directory_in_state_dir_that_an_earlier_release_left_open_is_closed(
    tmp_path,
):
    party = make_parties(tmp_path, blobs())[0]
    assert isinstance(party.ask(Enrol(doc=make_run().data)), Joined)  # makes state_dir
    place = work_dir(party.policy, "vertical")
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o755)
    assert isinstance(party.ask(Enrol(doc=make_run().data)), Joined)
    assert place.stat().st_mode & 0o777 == 0o700


def test_files_that_cannot_be_removed_stop_no_other_run(tmp_path, caplog):
    run, elsewhere = make_run(), tmp_path / "elsewhere"
    party = make_parties(tmp_path, blobs())[0]
    Store(elsewhere).write("kept", [b"1"])
    work_dir(party.policy, "vertical").mkdir()
    (work_dir(party.policy, "vertical") / ("0" * 64)).symlink_to(elsewhere)
    assert isinstance(party.ask(Enrol(doc=run.data)), Joined)
    assert (elsewhere / "kept").exists()
    assert "cannot be removed" in caplog.text


# ---------------------------------------------------------------------- what others see


def secrets_in(party, session):
    """Return which secrets of a session lie in the party's files."""
    data = [path.read_bytes() for path in party.directory.rglob("*") if path.is_file()]
    names = ("secret", "ephemeral")
    return [
        name for name in names if any(getattr(session, name) in each for each in data)
    ]


@pytest.mark.claim("threat-model", "V10")
def test_limit_under_relayed_keys_a_stranger_that_joins_first_has_the_partys_place(
    tmp_path,
):
    """Attack 10, with an honest server: it holds the key and learns the centroids."""
    run = make_run()
    parties = make_parties(tmp_path / "parties", blobs())
    columns = np.random.default_rng(9).random((len(blobs()), 2))
    stranger = make_parties(tmp_path / "stranger", columns)[1]
    carried = Relay(run, [stranger, *parties])
    carried.server.set_up([0, 1, 2], carried.trip)
    for _ in range(run.document.rounds):
        carried.take("step")
    carried.take("close")
    assert [bool(party.results) for party in (stranger, *parties)] == [
        True,
        True,
        False,
    ]
    assert spent_epsilon(parties[0].directory, 1e-6) > 0
    assert spent_epsilon(parties[1].directory, 1e-6) == 0


@pytest.mark.claim("vertical", "every-party-receives-centroids")
@pytest.mark.parametrize("name", ["story", "one_holder"])
def test_the_server_sees_no_centroid_and_nothing_but_uniform_bytes(name, request):
    story = request.getfixturevalue(name)
    result, algorithm = story.parties[0].results[0], story.run.algorithm
    patterns = [
        value.tobytes() for value in (*result.centroids.ravel(), *result.counts)
    ]
    for array in (algorithm.domain.to_unit(result.centroids), result.counts):
        grid = np.rint(array * 2**algorithm.fraction_bits).astype("<i8").ravel()
        patterns += [value.tobytes() for value in grid]
    for _, sent, reply in story.relay.seen:
        assert not any(pattern in sent or pattern in reply for pattern in patterns)
    large = [
        p.data for _, _, r in story.turns() for p in r.parcels if len(p.data) > 10_000
    ]
    assert large
    least = min(byte_p_value(data[: 2**20]) for data in large)
    assert least > 1e-9, (
        f"A parcel's bytes are uniform with p = {least}; 1e-9 is allowed."
    )


@pytest.mark.claim("threat-model", "V18")
def test_nothing_secret_is_left_when_a_run_is_over(story):
    """Attack 20: who steals a node later cannot open what was recorded."""
    for slot, party in enumerate(story.parties):
        assert secrets_in(story.copies[slot], story.sessions[slot]) == [
            "secret",
            "ephemeral",
        ]
        assert secrets_in(party, story.sessions[slot]) == []
        assert not list(party.directory.glob("vertical/*"))
        session = party.session(story.run)
        assert (session.secret, session.ephemeral, session.state) == (b"", b"", b"")


# ------------------------------------------------------------------------------ joining


def join(tmp_path, slot, run, **changes):
    """Return what a party replies to an enrolment."""
    run = run or make_run()
    widths = run.document.body.widths
    party = make_parties(tmp_path, blobs(d=len(widths)), widths)[slot]
    party.policy = replace(party.policy, **changes)
    return party.ask(Enrol(doc=run.data))


NAMED = make_run(
    algorithm=make_algorithm(
        domain=Box([0.0, 0.0], [1.0, 2.0], columns=("age", "income"))
    )
)
IDS = make_run(check_ids=True)
MEMORY = {"state_dir": None, "in_memory": True}


@pytest.mark.claim("vertical", "partys-slot-party-policy")
@pytest.mark.parametrize(
    ("slot", "run", "changes"),
    [
        (0, None, {}),
        (1, None, {}),
        (1, None, MEMORY),
        (0, None, {**MEMORY, "work_dir": "work"}),
        (0, NAMED, {"max_opened": 12}),
        (1, NAMED, {"must_hold_key": True}),
        (0, NAMED, {"domain": Box([0.0], [1.0]), "columns": ("age",)}),
        (1, NAMED, {"columns": ("income",)}),
    ],
)
def test_a_party_joins_at_the_slot_of_its_policy(
    tmp_path, monkeypatch, slot, run, changes
):
    monkeypatch.chdir(tmp_path)
    joined = join(tmp_path, slot, run, **changes)
    assert isinstance(joined, Joined)
    has_ledger = changes.get("state_dir", "one") is not None
    assert (joined.slot, joined.has_ids, joined.ledger) == (slot, False, has_ledger)
    assert joined.commitment == b""


@pytest.mark.claim("vertical", "partys-slot-party-policy", "each-ledger-charges-whole")
@pytest.mark.claim("threat-model", "V7")
@pytest.mark.parametrize(
    ("slot", "run", "changes", "code"),
    [
        (0, None, {"party": None}, Code.POLICY),
        (0, None, {"party": 2}, Code.POLICY),
        (0, None, {"trusts": ("clients-only", "oblivious-server")}, Code.POLICY),
        (0, None, {"max_opened": 11}, Code.POLICY),
        (0, None, {"max_rounds": 1}, Code.POLICY),
        (0, None, {"max_epsilon": 7.9}, Code.POLICY),
        (0, None, {"max_colluders": 2}, Code.POLICY),
        (0, None, {"min_clients": 3}, Code.POLICY),
        (0, None, {"columns": ("age",)}, Code.POLICY),
        (0, None, {"domain": Box([0.0], [1.5])}, Code.POLICY),
        (0, None, {"domain": Box([0.0, 0.0], [1.0, 2.0])}, Code.POLICY),
        (0, None, {"state_dir": None}, Code.LEDGER),
        (0, None, MEMORY, Code.POLICY),  # party 0 needs a place for its files
        (1, NAMED, {"columns": ("age",)}, Code.POLICY),
        # it only encrypts
        (2, make_run((1, 1, 1)), {"must_hold_key": True}, Code.POLICY),
        (1, IDS, {}, Code.DATA),  # it has no ids
        (1, None, {"max_total_epsilon": 7.9, "max_total_delta": 1e-6}, Code.LEDGER),
    ],
)
def test_a_run_outside_of_the_policy_is_refused(tmp_path, slot, run, changes, code):
    assert code_of(join(tmp_path, slot, run, **changes)) == code


def test_no_request_of_another_kind_of_run_is_answered(story, tmp_path):
    """Of the other way round, a `Turn` is in test_attacks.py."""
    party = story.copies[1].copied(tmp_path / "copy")
    assert (
        code_of(party.ask(messages.Finish(doc_hash=story.run.doc_hash)))
        == Code.BAD_MESSAGE
    )
    run, node = (
        open_run(encode(make_horizontal())),
        Node(ClientPolicy.for_simulation(), blobs()),
    )
    node.send(Enrol(doc=run.data))
    assert (
        code_of(node.send(Turn(doc_hash=run.doc_hash, step="keys"))) == Code.BAD_MESSAGE
    )


# ---------------------------------------------------------------------------- documents


BODY = make_document().body
HORIZONTAL = Horizontal(algorithm=BODY.algorithm, domain=BODY.domain)


def body(widths=(1, 1), **changes):
    """Return a body whose algorithm or widths may not fit."""
    algorithm = {**BODY.algorithm, **changes}
    return {"body": Vertical(algorithm=algorithm, domain=BODY.domain, widths=widths)}


@pytest.mark.claim("protocol", "document-contradicts-itself-not")
@pytest.mark.parametrize(
    "changes",
    [
        {"words": (7, 7)},
        {"words": (6,)},
        {"min_clients": 3},
        {"max_attempts": 2},
        {"epoch": 1},
        {"max_colluders": 2, "share_variance": "1/1"},
        {"share_variance": "1/2"},
        {"keys": "none"},
        {"levels": (2,)},
        {"roster": bytes(32)},
        {"trust": "clients-only"},
        {"privacy": make_algorithm(n_rounds=3).plan().to_config()},
        {"sampler": "none"},
        {"body": HORIZONTAL},
        *[body(widths) for widths in ((1, 2), (2, 1), (1,) * 3)],
        *[body(key_holders=holders) for holders in (0, 2, "1", None)],
    ],
)
def test_a_document_that_contradicts_itself_is_not_accepted(changes):
    data = encode(make_document(**changes))
    with pytest.raises(UnacceptableRunError):
        verify_plan(open_run(data))  # which opens the run


@pytest.mark.claim("protocol", "document-contradicts-itself-not")
def test_a_round_opens_a_thousand_values_at_most():
    assert make_run((498, 1), make_algorithm((498, 1), n_rounds=1)).document.words == (
        1000,
    )
    with pytest.raises(UnacceptableRunError, match="1000"):
        make_run((499, 1), make_algorithm((499, 1), n_rounds=1))


@pytest.mark.claim("guarantees", "32")
@pytest.mark.parametrize(("colluders", "shares"), [(1, 2), (2, 1)])
def test_max_colluders_say_how_wide_a_noise_share_is(colluders, shares):
    widths = (1, 1, 1)
    algorithm = make_algorithm(widths, key_holders=2)
    run = make_run(widths, algorithm, max_colluders=colluders)
    verify_plan(open_run(run.data))
    assert run.document.noise_shares == shares
    assert run.document.share_variance == f"1/{shares}"
