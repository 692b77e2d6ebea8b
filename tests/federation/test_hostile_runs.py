"""Whole runs with hostile messages in between: clients and servers keep their rules and state."""

import logging
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
from asking import Split
from flwr.app import Error, Message, RecordDict
from harness import (
    BOX,
    KMEANS,
    SIMULATED,
    RecordingGrid,
    Scene,
    decoded,
    key_file,
    make_run,
    roster_policies,
)
from hostile import (
    as_record,
    content,
    message,
    message_classes,
    mutated,
    near,
    near_bytes,
    plausible,
    without_noise,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flower_kmeans import Box, ClientPolicy, PrivacyBudget
from flower_kmeans.client import kmeans_client_app
from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.federation import coordinator, enrolment, seating
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.life import load_life
from flower_kmeans.federation.member import Member
from flower_kmeans.federation.messages import (
    EnrolReply,
    LeadReply,
    OpenReply,
    Refusal,
    RoundReply,
    decode_reply,
)
from flower_kmeans.federation.transcript import Entry, first_hash, next_hash
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.in_process import task_identity
from flower_kmeans.strategies import FastLloyd, Lloyd

TRUSTS = ("oblivious-server", "distributed-noise", "trusted-server", "plain")
CASES = [
    ("oblivious-server", "relayed", "none"),
    ("oblivious-server", "roster", "none"),
    ("distributed-noise", "relayed", "deferred"),
    ("distributed-noise", "roster", "immediate"),
    ("distributed-noise", "file", "simple"),
    ("trusted-server", "none", "none"),
    ("plain", "none", "none"),
    ("distributed-noise", "roster", "immediate", "the server asks"),
    ("trusted-server", "none", "none", "the server asks"),
]
PARTS = [np.random.default_rng(i).random((20 + i, 2)) for i in range(6)]
TYPES = ("train.kmeans", "query.kmeans", "evaluate.kmeans")
# What a member's rules are about, beside the many fields that are just compared.
DECISIVE = (
    *("entries", "attempt", "m", "t", "index", "envelope", "leader", "pubs"),
    *("question", "result"),
)
SAID = "told by a client"  # what a hostile client writes wherever it can
REASONS = {code.sentence for code in Code} | {
    value
    for module in (coordinator, enrolment, seating)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
ANSWERS = {
    "enrol": EnrolReply,
    "lead": LeadReply,
    "round": RoundReply,
    "open": OpenReply,
    "finish": OpenReply,
}

fuzz = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    """Thousands of refusals, each with its line in a client's log, are not worth a second each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


every_case = pytest.mark.parametrize("case", CASES, ids="-".join)


def make(trust, keys="none", opening="none", kind=""):
    options = {"n_rounds": 2 if kind else 3, "min_clients": 3}
    if keys != "none":
        options["keys"] = keys
    if opening != "none":
        options["opening"] = opening
    if trust == "plain":
        return Lloyd(2, BOX, **options)
    if kind:
        return Split(2, BOX, PrivacyBudget(1.0), n_records=120, trust=trust, **options)
    return FastLloyd(2, BOX, PrivacyBudget(1.0), n_records=120, trust=trust, **options)


# --------------------------------------------------------------------------- hostile servers


@dataclass
class Watch:
    """What clients said, and the rules that no message may make them break."""

    words: dict = field(default_factory=dict)
    answered: dict = field(default_factory=dict)
    lives: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    repeated: bool = False

    def check(self, node, request, reply):
        """Compare one reply with the rules, and with everything that the client said before."""
        assert set(reply) == {KMEANS}
        assert not self.repeated
        answer = decoded(reply)  # strictly: a refusal holds its code and nothing else
        if isinstance(answer, Refusal):
            assert answer.code not in (Code.INTERNAL, Code.DATA)  # nothing unforeseen
            return answer
        asked = dict(request[KMEANS])
        assert asked["kind"] in ANSWERS
        assert type(answer) is ANSWERS[asked["kind"]]
        assert answer.doc_hash == asked["doc_hash"]
        if isinstance(answer, EnrolReply):
            life = (node, answer.doc_hash)
            assert self.lives.setdefault(life, answer.commitment) == answer.commitment
        if isinstance(answer, RoundReply):
            sent = (node, answer.ctx)
            assert self.words.setdefault(sent, answer.words) == answer.words
            place = (node, answer.doc_hash, asked["t"], asked["attempt"])
            assert self.answered.setdefault(place, answer.ctx) == answer.ctx
        return answer

    def keep(self, result, context):
        """Take a result; each run has one for every client."""
        place = (context.node_id, result.run)
        # What is raised here stays with the client, so it is remembered.
        self.repeated |= place in self.results
        self.results[place] = result


@dataclass(frozen=True)
class Influence:
    """A hostile message that a member took for the server's: it answered, or follows it."""

    values: dict
    before: bytes  # transcript hash
    after: bytes
    ctx: bytes | None


@dataclass(frozen=True)
class Attack:
    """One message of somebody else's, and when it comes."""

    step: int
    node: int
    seed: int


class AttackedGrid(RecordingGrid):
    """A grid on whose way other messages arrive at the clients, between the honest ones."""

    def __init__(self, app, n_nodes, watch):
        super().__init__(app, n_nodes)
        self.watch, self.attacks, self.step = watch, (), 0
        self.requests, self.answers, self.influence, self.said = [], [], [], []

    def _run_client(self, message):
        node = self.latest = message.metadata.dst_node_id
        self.requests.append(dict(message.content[KMEANS]))
        self._attack()
        reply = super()._run_client(message)
        assert reply.has_content(), "The client raised."
        self.watch.check(node, message.content, reply.content)
        self.answers.append(dict(reply.content[KMEANS]))
        self._attack()
        return reply

    def _attack(self):
        self.step += 1
        for attack in self.attacks:
            if attack.step == self.step:
                self._send(attack)

    def _send(self, attack):
        rng = Random(attack.seed)
        if rng.random() < 0.5:  # just before or after the honest message, to the same client
            node, values = self.latest, self.requests[-1]
        else:
            node = list(self._contexts)[attack.node % len(self._contexts)]
            values = rng.choice([*self.requests[-12:], rng.choice(self.requests + self.answers)])
        kind = rng.random()
        if kind < 0.3:
            values = mutated(rng, values, self.requests + self.answers)
        elif kind < 0.8:
            name = rng.choice([name for name in values if name not in ("v", "kind")])
            if rng.random() < 0.5:
                name = rng.choice([name for name in DECISIVE if name in values] or [name])
            values = {**values, name: near(rng, values[name])}
        message = Message(content(rng, values), node, rng.choice(TYPES))
        message.metadata.__dict__["_message_id"] = f"hostile-{self.step}"
        state, doc_hash = self._contexts[node].state, values.get("doc_hash")
        before = chain_in(state, doc_hash)
        reply = self._client_app(message, self._contexts[node])
        answer = self.watch.check(node, message.content, reply.content)
        self.said.append(answer)
        after = chain_in(state, doc_hash)
        if isinstance(answer, RoundReply) or before != after:
            self.influence.append(Influence(values, before, after, getattr(answer, "ctx", None)))


OVER = b"over"


def chain_in(state, doc_hash):
    """Return the transcript hash of a member's life in a run, or whether it is over."""
    if not isinstance(doc_hash, bytes):
        return b""
    life = load_life(state, doc_hash)
    if life is None:
        return first_hash(doc_hash)
    return OVER if life.finished else life.chain


attacks = st.lists(
    st.builds(Attack, st.integers(1, 60), st.integers(0, 5), st.integers(0, 2**32)),
    min_size=20,
    max_size=50,
)


def spoiled(strategy, grid):
    """Return whether hostile messages did to a run what a server may always do.

    It can use up a member's answer, by another attempt, another size of the cohort or another
    question of its own, announce a sum with other words under the same checksum word, and tell
    another result where that is its word. Everything else must have been refused.
    """
    run = strategy._run_state
    doc_hash = run.run.document.doc_hash
    chain = first_hash(doc_hash)
    chains, contexts = {chain}, {answer["ctx"] for answer in grid.answers if "ctx" in answer}
    entries = {}
    for closed in run.closed:
        entries[closed.entry.t] = closed.entry
        chain = next_hash(chain, closed.entry.context(doc_hash, chain), closed.entry)
        chains.add(chain)
    asked = {
        (request["t"], request["attempt"], request["m"], request.get("question"))
        for request in grid.requests
        if request["kind"] == "round" and request["doc_hash"] == doc_hash
    }
    results = {r.get("result") for r in grid.requests if r["kind"] == "finish"}
    found = False
    for act in grid.influence:
        values = act.values
        if values["doc_hash"] != doc_hash or act.before not in chains:
            continue
        told = [Entry.unpack(data) for data in values.get("entries", ())]
        other = [e for e in told if e.t not in entries or e.pack() != entries[e.t].pack()]
        if act.after not in chains and (other or act.after != OVER):
            found = True
            # Where nothing is masked, the checksum word is all that says who was added.
            masked = run.run.document.is_masked
            assert any(e.t in entries and passes(e, entries[e.t], masked) for e in other)
        elif act.ctx is not None and act.ctx not in contexts:
            found = True
            place = (values["t"], values["attempt"], values["m"], values.get("question"))
            assert place not in asked
        elif act.after == OVER and values.get("result") not in results:
            found = True
            assert not run.run.algorithm.replayable
    return found


def passes(told, announced, masked):
    """Return whether an altered entry keeps what its checksum word, and its masks, depend on."""
    if not masked:
        return int(told.words[-1]) == told.n_survivors
    frames = [
        (e.attempt, e.m, e.root, e.question_hash, e.survivors.tobytes(), int(e.words[-1]))
        for e in (told, announced)
    ]
    return frames[0] == frames[1]


def play(strategy, grid):
    """Run a strategy over a grid; return the error that ended it, if one did."""
    with task_identity():
        try:
            strategy.start(grid, timeout=60)
        except RunError as error:
            return error
    return None


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Return the policies of all clients by where their keys come from."""
    folder = tmp_path_factory.mktemp("keys")
    return {
        "none": [SIMULATED],
        "relayed": [SIMULATED],
        "file": [replace(SIMULATED, group_key_file=key_file(folder))],
        "roster": roster_policies(folder, 6),
    }


def app_of(watch, policies=(SIMULATED,), parts=PARTS):
    apps = [
        kmeans_client_app(
            lambda context: parts[int(context.node_config["partition-id"])], policy, watch.keep
        )
        for policy in policies
    ]

    def app(message, context):
        return apps[int(context.node_config["partition-id"]) % len(apps)](message, context)

    return app


def results_of(strategy, watch):
    """Return the results that clients were given of the strategy's run."""
    name = strategy._run_state.run.document.run
    return [result for (_, run), result in watch.results.items() if run == name]


def same(results, expected):
    for result in results:
        np.testing.assert_array_equal(result.centroids, expected.centroids)
        np.testing.assert_array_equal(result.counts, expected.counts)


@pytest.fixture(scope="module")
def undisturbed():
    """Return the result of a run of some clients without noise and without anybody hostile."""
    known = {}

    def result(case, present):
        trust, kind = case[0], "".join(case[3:])
        if (trust, present, kind) not in known:
            watch, parts = Watch(), [PARTS[i] for i in present]
            strategy = make(trust, kind=kind)
            with without_noise():
                grid = AttackedGrid(app_of(watch, parts=parts), len(parts), watch)
                assert play(strategy, grid) is None
            first, *others = results_of(strategy, watch)
            assert len(others) == len(present) - 1
            same(others, first)
            known[trust, present, kind] = first
        return known[trust, present, kind]

    return result


@every_case
@given(plan=attacks)
@settings(fuzz, max_examples=40)
def test_hostile_messages_break_no_rule_and_leave_no_trace(case, plan, undisturbed, policies):
    watch, strategy = Watch(), make(*case)
    with without_noise():
        grid = AttackedGrid(app_of(watch, policies[case[1]]), 5, watch)
        assert play(make(*case), grid) is None  # a run whose messages will come again
        grid.attacks, grid.step = plan, 0
        error = play(strategy, grid)
    assert not watch.repeated
    assert {entry.reason for entry in strategy.report.incidents} <= REASONS
    if spoiled(strategy, grid):
        return
    # All else leaves the run as if nothing had come.
    assert error is None
    assert strategy.report.dropped == []
    assert strategy.report.answers == [5] * strategy.n_rounds
    delivered = results_of(strategy, watch)
    assert len(delivered) == 5
    same(delivered, undisturbed(case, range(5)))
    if case[0] != "oblivious-server":
        np.testing.assert_array_equal(strategy.centroids, delivered[0].centroids)


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids="-".join)
@given(plan=attacks)
@example(plan=[Attack(24, 0, 9_449_312)])  # asks for another attempt at a round
@settings(fuzz, max_examples=5)
def test_a_ledger_is_charged_for_what_was_answered_and_no_more(case, plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    policies = [replace(SIMULATED, in_memory=False, state_dir=folder / str(i)) for i in range(4)]
    watch, strategy = Watch(), make(*case)
    grid = AttackedGrid(app_of(watch, policies), 4, watch)
    grid.attacks = plan
    play(strategy, grid)
    doc_hash = strategy._run_state.run.document.doc_hash
    for node, policy in zip(grid.get_node_ids(), policies, strict=True):
        rounds = [t for n, run, t, attempt in watch.answered if (n, run) == (node, doc_hash)]
        if case[0] != "distributed-noise":  # there every attempt can end in a sum of its own
            rounds = sorted(set(rounds))
        planned = replace(strategy.plan, rounds=tuple(strategy.plan.rounds[t - 1] for t in rounds))
        with Ledger(policy.state_dir) as ledger:
            spent = ledger.epsilon(strategy.plan.budget.delta)
        assert spent == pytest.approx(planned.epsilon(), rel=1e-9)


@pytest.mark.parametrize("trust", TRUSTS)
@given(seed=st.integers(0, 2**32))
@settings(fuzz, max_examples=8)
def test_nothing_is_told_or_read_before_the_policy_accepts(trust, seed, recorded):
    """A client that accepts no such run answers with codes, whatever it is sent."""
    rng, state, reads = Random(seed), RecordDict(), []
    for policy in (
        ClientPolicy(),  # without a ledger, private work is refused
        replace(SIMULATED, trusts=tuple(t for t in TRUSTS if t != trust)),
        replace(SIMULATED, max_rounds=2),
        replace(SIMULATED, min_clients=6),
        replace(SIMULATED, domain=Box([0.0, 0.0], [1.0, 2.0])),
    ):
        member = Member(policy, state, 1001, lambda: reads.append(1))
        for _ in range(20):
            values = rng.choice(recorded(trust))
            if rng.random() < 0.5:
                values = mutated(rng, values, recorded(trust))
                if values.get("doc") not in (None, recorded(trust)[0]["doc"]):
                    continue  # another run, which may be acceptable
            answer = decoded(member.handle(content(rng, values)))
            assert isinstance(answer, Refusal)
            assert answer.code in (
                Code.BAD_MESSAGE,
                Code.VERSION,
                Code.POLICY,
                Code.STALE,
                Code.NEED,
                Code.LEDGER,
                Code.KEY,
            )
    assert not reads
    assert not state


@pytest.fixture(scope="module")
def recorded():
    """Return what a run's server sent."""
    known = {}

    def requests(trust):
        if trust not in known:
            watch = Watch()
            grid = AttackedGrid(app_of(watch), 5, watch)
            assert play(make(trust), grid) is None
            known[trust] = grid.requests
        return known[trust]

    return requests


def test_a_message_without_content_gets_a_code():
    with task_identity():
        grid = AttackedGrid(app_of(Watch()), 1, Watch())
        (node,) = grid.get_node_ids()
        asked = Message(RecordDict(), node, TYPES[0])
        empty = Message(Error(code=1, reason=SAID), reply_to=asked)
        reply = app_of(Watch())(empty, grid._contexts[node])
    assert decoded(reply.content) == Refusal(code=Code.BAD_MESSAGE)


# --------------------------------------------------------------------------- hostile clients


class InfestedGrid(AttackedGrid):
    """A grid of which some clients answer otherwise than they should."""

    def __init__(self, app, n_nodes, watch, liars, lie):
        super().__init__(app, n_nodes, watch)
        self._liars, self._lie = [list(self._contexts)[i] for i in liars], lie

    def pull_messages(self, message_ids):
        for reply in super().pull_messages(message_ids):
            yield reply
            if reply.metadata.src_node_id in self._liars and self._lie.random() < 0.2:
                yield reply

    def _run_client(self, message):
        reply = super()._run_client(message)
        if message.metadata.dst_node_id not in self._liars:
            return reply
        return self._lie_about(message, dict(message.content[KMEANS]), reply)

    def _lie_about(self, message, asked, reply):
        raise NotImplementedError


class Malformed(InfestedGrid):
    """Their answers cannot be read, or are errors."""

    def _lie_about(self, message, asked, reply):
        rng = self._lie
        if asked["kind"] == "enrol" and rng.random() < 0.5:
            return reply
        if rng.random() < 0.2:
            return Message(Error(code=rng.randrange(5), reason=SAID), reply_to=message)
        told = dict(reply.content[KMEANS])
        for _ in range(20):
            changed = content(rng, mutated(rng, told, [*self.answers, {"reason": SAID}]))
            try:
                decode_reply(changed, ANSWERS[asked["kind"]], asked["doc_hash"])
            except MessageError:
                return Message(changed, reply_to=message)
        return Message(RecordDict(), reply_to=message)


class Lies(InfestedGrid):
    """Their answers can be read, mostly, and are wrong."""

    def _lie_about(self, message, asked, reply):
        rng = self._lie
        expected = ANSWERS[asked["kind"]]
        kind = rng.randrange(8)
        told = dict(reply.content[KMEANS])
        if kind == 0:
            return reply
        if kind == 1:  # what another client said, or what it said in another round
            told = rng.choice(self.answers)
        elif kind == 2:
            code = rng.choice([code for code in Code if code not in (Code.OK, Code.GARBAGE)])
            told = plausible(rng, Refusal, doc_hash=asked["doc_hash"], code=int(code))
        elif kind == 3:
            told = plausible(rng, expected, doc_hash=asked["doc_hash"])
        elif kind == 4:
            told["words"] = rng.randbytes(len(told.get("words", bytes(8))))
        elif kind == 5:
            told = plausible(rng, rng.choice(message_classes()))
        else:
            name = rng.choice([name for name in told if name not in ("v", "kind")])
            told[name] = near(rng, told[name])
        return Message(RecordDict({KMEANS: as_record(told)}), reply_to=message)


@every_case
@given(seed=st.integers(0, 2**32), liars=st.sets(st.integers(0, 5), min_size=1, max_size=2))
@fuzz
def test_unreadable_answers_change_nothing_but_the_report(case, seed, liars, undisturbed, policies):
    watch, strategy = Watch(), make(*case)
    with without_noise():
        grid = Malformed(app_of(watch, policies[case[1]]), 6, watch, liars, Random(seed))
        assert play(strategy, grid) is None
    nodes = sorted(grid.states)
    told = (*strategy.report.incidents, *strategy.report.dropped)
    assert {entry.reason for entry in told} <= REASONS
    assert {entry.node_id for entry in told} <= {nodes[i] for i in liars}
    assert SAID not in f"{strategy.report} {strategy.report.to_dict()}"
    good = [r for (node, _), r in watch.results.items() if nodes.index(node) not in liars]
    assert len(good) == 6 - len(liars)
    if case[0] != "oblivious-server":
        np.testing.assert_array_equal(strategy.centroids, good[0].centroids)
    same(good, undisturbed(case, tuple(i for i in range(6) if i not in liars)))


@every_case
@given(seed=st.integers(0, 2**32), liars=st.sets(st.integers(0, 5), min_size=1, max_size=3))
@settings(fuzz, max_examples=15)
def test_lies_end_in_a_result_or_in_a_documented_error(case, seed, liars, policies):
    watch, strategy = Watch(), make(*case)
    grid = Lies(app_of(watch, policies[case[1]]), 6, watch, liars, Random(seed))
    error = play(strategy, grid)  # nothing but a RunError
    told = (*strategy.report.incidents, *strategy.report.dropped)
    assert {entry.reason for entry in told} <= REASONS
    assert SAID not in f"{error} {strategy.report} {strategy.report.to_dict()}"
    if error is None:
        assert strategy.report.n_rounds == strategy.n_rounds
        assert all(3 <= n <= 6 for n in strategy.report.answers)


class Altered(InfestedGrid):
    """What some clients say is changed by ``lie``, a function of the request's kind and of it."""

    def pull_messages(self, message_ids):
        return RecordingGrid.pull_messages(self, message_ids)

    def _lie_about(self, message, asked, reply):
        told = dict(reply.content[KMEANS])
        self._lie(asked["kind"], told)
        return Message(RecordDict({KMEANS: as_record(told)}), reply_to=message)


@pytest.mark.parametrize(("liars", "point"), [([0], bytes(32)), ([4, 5], bytes([7]) * 32)])
def test_a_bad_public_key_costs_its_client_the_run_and_nobody_else(liars, point, undisturbed):
    """Nobody can seal a group key for a weak point, and nobody seals one for the same key twice."""

    def lie(asked, told):
        if asked == "enrol":
            told["public_key"] = point

    watch, strategy = Watch(), make("oblivious-server", "relayed")
    with without_noise():
        grid = Altered(app_of(watch), 6, watch, liars, lie)
        assert play(strategy, grid) is None
    rest = tuple(i for i in range(6) if i not in liars)
    nodes = sorted(grid.states)
    assert {nodes.index(entry.node_id) for entry in strategy.report.incidents} == set(liars)
    assert strategy.report.answers == [len(rest)] * 3
    same(results_of(strategy, watch), undisturbed(["oblivious-server"], rest))


@pytest.mark.parametrize("trust", ["trusted-server", "plain"])
def test_words_that_nobody_could_open_are_not_added_where_the_server_reads_them(trust, undisturbed):
    def lie(asked, told):
        if asked == "round":
            told["words"] = bytes(len(told["words"]) - 8) + (2).to_bytes(8, "little")

    watch, strategy = Watch(), make(trust)
    with without_noise():
        grid = Altered(app_of(watch), 6, watch, [1, 4], lie)
        assert play(strategy, grid) is None
    assert {entry.reason for entry in strategy.report.dropped} == {coordinator.MALFORMED}
    assert strategy.report.answers == [4, 4, 4]
    same(results_of(strategy, watch), undisturbed([trust], (0, 2, 3, 5)))


# --------------------------------------------------------------------------- the coordinator alone

REPLIES = [cls for cls in message_classes() if cls in (*ANSWERS.values(), Refusal)]


@pytest.mark.parametrize("trust", TRUSTS)
@given(rng=st.randoms(use_true_random=False))
@settings(fuzz, max_examples=25)
def test_a_coordinator_takes_any_reply_at_any_time(trust, rng):
    """Whatever comes when: an honest answer counts once, and nothing but a RunError is raised."""
    scene = Scene(make_run(trust))
    server, run = scene.server, scene.run.document
    strangers = (0, 5, 2**63 - 1, 2**64 - 1)

    def nearly(honest):
        """Return an answer of this attempt with another context, or another number of words."""
        if rng.random() < 0.5:
            other = near_bytes(rng, honest.ctx)[:32].ljust(32)
            if other == honest.ctx:  # bytes put before the first 32 may be those themselves
                other = bytes(reversed(honest.ctx))
            return replace(honest, ctx=other)
        length = 8 * rng.choice((1, 2, len(honest.words) // 8 - 1, len(honest.words) // 8 + 1))
        return replace(honest, words=(honest.words * 2)[-length:])

    def disturb():
        for _ in range(rng.randrange(4)):
            cls = rng.choice(REPLIES)
            reply = message(rng, cls, doc_hash=run.doc_hash)
            if cls is RoundReply and scene.replies:
                reply = nearly(rng.choice(list(scene.replies.values())))
            node = rng.choice([*strangers, *(node.node_id for node in scene.nodes)])
            if isinstance(reply, Refusal):
                if reply.code in (Code.GARBAGE, Code.RENEW):
                    continue  # the one ends the run, the other unseats the node that says so
                server.refuse(node, reply, rng.choice((0, server.head + 1)))
            elif isinstance(reply, EnrolReply):
                server.accept_join(node, reply)
            elif isinstance(reply, LeadReply):
                server.accept_lead(node, reply)
            elif isinstance(reply, RoundReply):
                server.accept_round(node, reply)
            elif isinstance(reply, OpenReply) and node in strangers:
                server.accept_open(node, reply)

    for _ in range(2):
        disturb()
        scene.open()
        for i in range(4):
            disturb()
            reply = scene.answer(i)
            if rng.random() < 0.3:
                server.accept_round(scene.nodes[rng.randrange(i + 1)].node_id, reply)
        assert server.close_round()
        assert server.closed[-1].entry.survivors[:4].all()
        assert server.closed[-1].entry.n_survivors == 4
    assert {entry.reason for entry in server.incidents} <= REASONS
    if trust == "plain":
        exact = sum(scene.plain(i, scene.run.algorithm.initial_state(None)) for i in range(4))
        first = server.closed[0].entry.words
        np.testing.assert_array_equal(first[:-1].view(np.int64), exact)
