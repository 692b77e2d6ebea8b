"""The documents: their links lead somewhere, and their promises hold."""

import math
import re
import tomllib
from dataclasses import fields
from functools import cache

import msgspec
import numpy as np
import pytest
from asking import Split
from pages import PAGES, ROOT, blocks, page_id

import flower_kmeans
from flower_kmeans import (
    Box,
    ClientPolicy,
    Fault,
    PrivacyBudget,
    TableDomain,
    kmeans_client_app,
    simulate,
)
from flower_kmeans.algorithms import FastLloydAlgorithm
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.cli.check import _HINTS as HINTS
from flower_kmeans.cli.check import check_node
from flower_kmeans.errors import ConfigurationError, TooFewClientsError
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.committee import corrupt_positions
from flower_kmeans.protocol.messages import Answer, Code, decode_reply
from flower_kmeans.protocol.policy import DOMAIN_EXAMPLES
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.protocol.run import PROTOCOL, RunDocument
from flower_kmeans.protocol.trust import TRUST_MODELS, trust_model
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.report.report import PARTIES, CommitteeReport, Report
from flower_kmeans.secagg.base import secure_sum
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import (
    BY_NAME,
    FastLloyd,
    FedDPKMeans,
    HDPEMeans,
    Lloyd,
    SynopsisKMeans,
    VerticalKMeans,
)
from flower_kmeans.vertical.costs import costs
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.protocol import messages as of_columns
from flower_kmeans.vertical.protocol.body import Vertical
from flower_kmeans.vertical.ring import packed_bytes

pytestmark = pytest.mark.usefixtures("quiet")

LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")

BOX = Box([0, 0], [10, 10])
RECORDS = np.random.default_rng(7).uniform(0, 10, (600, 2))
PARTITIONS = np.array_split(RECORDS, 6)
BUDGET = PrivacyBudget(epsilon=1.0)
SHARED = ("clients-only", "distributed-noise")
BLIND = ("clients-only", "oblivious-server")


def table(page, first_cell):
    """Return the rows (lists of cells) of the page's table whose heading starts like that."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |")]
    assert len(starts) == 1, (
        f"{page} has {len(starts)} tables that start with {first_cell!r}"
    )
    rows = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code_spans(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


# ------------------------------------------------------------------------ the documents


def prose(page):
    """Return a page's text without its code blocks."""
    return re.sub(
        r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )


@cache
def anchors(page):
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def test_documents_state_the_version_and_day_of_the_release():
    (version, day), *_ = re.findall(
        r"^## \[([\d.]+)\] - ([\d-]+)$",
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert version == flower_kmeans.__version__
    citation = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    assert f"version: {version}" in citation
    assert f"date-released: {day}" in citation
    for page in ("README.md", "docs/index.md"):
        assert f"is version {version.rpartition('.')[0]}" in (ROOT / page).read_text(
            "utf-8"
        )


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page):
    missing = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert not missing


# --------------------------------------------------------------------------- README


@pytest.mark.claim("CONTRIBUTING", "tests-test-document-blocks")
def test_the_commands_of_the_readme_are_installed():
    shell = [
        block.text for block in blocks(ROOT / "README.md") if block.language == "bash"
    ]
    assert (
        shell[0] == 'python -m pip install ".[simulation]" && flower-kmeans simulate\n'
    )
    assert shell[1] == 'python -m pip install ".[test]" && python -m pytest -n 2\n'
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"simulation", "test"} <= set(project["optional-dependencies"])
    assert project["scripts"]["flower-kmeans"] == "flower_kmeans.cli.app:main"


def build(strategy, trust=None, **options):
    """Build a small strategy."""
    budget = PrivacyBudget(None) if strategy is Lloyd or trust == "plain" else BUDGET
    if strategy is VerticalKMeans:
        return strategy(3, BOX, budget, 600, parties=[1, 1], n_rounds=2, **options)
    if strategy is FedDPKMeans:
        options.setdefault("server_data", RECORDS[:20])
    if strategy is not SynopsisKMeans:  # whose rounds follow from the plan
        options["n_rounds"] = 2
    box = Box([0] * 17, [1] * 17) if strategy is HDPEMeans else BOX
    return strategy(3, box, budget, 600, trust=trust, n_clients=6, **options)


@pytest.mark.claim("adding-an-algorithm", "library-derives-trust-models")
def test_strategies_are_as_in_the_table():
    rows = {
        code_spans(name)[0]: row for name, *row in table("docs/choosing.md", "strategy")
    }
    classes = {cls.__name__: cls for cls in BY_NAME.values()}
    assert rows.keys() == classes.keys()
    for name, (_, noise, cell) in rows.items():
        strategy, trusts = build(classes[name]), code_spans(cell)
        assert strategy.trust == trusts[0]
        assert set(trusts) == {
            trust for trust in TRUST_MODELS if runs(classes[name], trust)
        }
        mechanisms = {release.mechanism for release in strategy.plan.releases}
        assert mechanisms == (set() if noise == "none" else {noise.lower()})
    assert {
        code_spans(row[0])[0] for row in table("docs/how-a-run-works.md", "trust")
    } == set(TRUST_MODELS)
    horizontal = [cls for cls in classes.values() if cls is not VerticalKMeans]
    assert not any(build(strategy, "plain").plan.is_private for strategy in horizontal)


def runs(strategy, trust):
    """Return whether a strategy, with its noise, runs under a trust model."""
    if strategy is VerticalKMeans:  # which takes none
        made = build(strategy)
        return trust_model(trust).objection(made.algorithm, made.plan) is None
    try:
        strategy = build(strategy, trust)
    except ConfigurationError:
        return False
    return strategy.plan.is_private == trust_model(trust).is_private and (
        trust != "plain" or isinstance(strategy, Lloyd)
    )


@pytest.mark.claim("threat-model", "without-state-dir-private")
def test_private_work_needs_in_memory():
    assert ClientPolicy().in_memory is False
    with pytest.raises(TooFewClientsError, match=re.escape(Code.LEDGER.sentence)):
        simulate(build(FastLloyd), PARTITIONS, policy=ClientPolicy())
    simulate(build(FastLloyd), PARTITIONS, policy=ClientPolicy(in_memory=True))
    # simulated clients share no ledger
    with pytest.raises(ConfigurationError, match="state_dir"):
        simulate(build(FastLloyd), PARTITIONS, policy=ClientPolicy(state_dir="state"))


@pytest.mark.claim("threat-model", "put-these-settings-into")
def test_policies_have_the_documented_defaults():
    rows = {
        code_spans(row[0]): row[1]
        for row in table("docs/threat-model.md", "setting of `ClientPolicy`")
    }
    assert {name for names in rows for name in names} == {
        f.name for f in fields(ClientPolicy)
    }
    policy = ClientPolicy()
    for name in ("trusts", "units"):
        assert rows[(name,)] == ", ".join(
            f"`{value}`" for value in getattr(policy, name)
        )
    numbers = ("min_clients", "max_rounds", "max_attempts", "max_colluders")
    of_persons = "max_clients_per_person"
    for name in (*numbers, of_persons, "copy_records", "must_hold_key", "in_memory"):
        assert rows[(name,)] == str(getattr(policy, name))
    assert rows[("max_opened",)] == f"{policy.max_opened:,}"
    assert (policy.party, policy.workers, policy.work_dir) == (None, None, None)
    assert rows[("party",)].startswith("none")
    assert rows[("workers",)] == "all processors but one"
    assert rows[("work_dir",)] == "`vertical` in `state_dir`"
    for prefix, epsilon in (("max", 1.0), ("max_total", 10.0)):
        names = (f"{prefix}_epsilon", f"{prefix}_delta")
        assert tuple(getattr(policy, name) for name in names) == (epsilon, 1e-6)
        assert rows[names].startswith(f"{epsilon}, 10⁻⁶ ")


@pytest.mark.claim("threat-model", "put-these-settings-into")
def test_the_documented_policy_file_is_one(tmp_path):
    files = [
        block.text
        for block in blocks(ROOT / "docs/deploy.md")
        if block.language == "toml"
    ]
    (text,) = (text for text in files if "state_dir" in text)
    columns = next(text for text in files if text.startswith("columns"))
    path = tmp_path / "policy.toml"
    path.write_text(columns + text, "utf-8")
    path.chmod(0o600)
    policy = ClientPolicy.from_file(path)
    assert (policy.trusts, policy.columns) == (("distributed-noise",), ("x0", "x1"))
    assert policy.domain == Box([-14, -14], [14, 14])
    assert policy.allows_private_work


def test_the_documented_policies_with_a_domain_are_complete(tmp_path):
    """A node with the files that the page shows, and nothing else, could take part."""
    found = [each.text for each in blocks(ROOT / "docs/reference/domains.md")]
    domain, *policies = [
        text for text in found if "[[columns]]" in text or "state_dir" in text
    ]
    write_members(tmp_path / "member", ("a", "b", "c"))
    for name, text in (
        ("domain", domain),
        ("by_path", policies[0]),
        ("by_table", policies[1]),
    ):
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
        (tmp_path / f"{name}.toml").chmod(0o600)
    assert len(policies) == 2
    declared = TableDomain.from_file(tmp_path / "domain.toml")
    by_path = check_node(tmp_path / "by_path.toml")
    by_table = check_node(tmp_path / "by_table.toml")
    assert all(finding.is_well for finding in by_path + by_table), by_path + by_table
    assert ClientPolicy.from_file(tmp_path / "by_path.toml").domain == declared
    pinned = ClientPolicy.from_file(tmp_path / "by_table.toml")
    assert pinned.domain == Box([0, 1000], [120, 1_000_000])
    assert pinned.columns == ("age", "income")
    (lines,) = (finding.text for finding in by_path if finding.name == "domain")
    assert "age: number 0 to 120, a missing cell counts as 40\n" in lines
    assert "income: number 1000 to 1e6, log scale\n" in lines


@pytest.mark.claim("reference/domains", "only-rules-missing-cells")
def test_errors_point_to_examples_that_are_there():
    pointer = re.compile(
        r"(docs/[\w/-]+\.md) has (?:an example|examples) under '([^']+)'"
    )
    pointers = [
        pointer.search(text) for text in (DOMAIN_EXAMPLES, HINTS["policy file"])
    ]
    for match in pointers:
        page, heading = match.groups()
        text = (ROOT / page).read_text("utf-8")
        section = re.search(
            rf"^#+ {heading}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL
        )
        assert "state_dir" in section[1]
    assert HINTS["domain"].endswith(DOMAIN_EXAMPLES)


def test_the_documented_number_of_runs_fits_into_the_total():
    mu = mu_of_budget(1.0, 1e-6)
    assert epsilon_of_mu(mu * 60**0.5, 1e-6) < 10 < epsilon_of_mu(mu * 61**0.5, 1e-6)


# ---------------------------------------------------------------------- how a run works


class CountingGrid(InProcessGrid):
    """A grid that counts round trips and keeps replies."""

    round_trips = 0

    def push_messages(self, messages):
        self.round_trips += 1
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        found = list(super().pull_messages(message_ids))
        self.replies = [*getattr(self, "replies", []), *found]
        return found


def run_counted(strategy):
    """Run a strategy, and return the grid."""
    client_app = kmeans_client_app(
        lambda context: PARTITIONS[context.node_config["partition-id"]],
        ClientPolicy.for_simulation(),
    )
    grid = CountingGrid(client_app, 6)
    with task_identity():
        strategy.start(grid)
    return grid


@pytest.mark.claim("how-a-run-works", "protocol-has-number-round")
@pytest.mark.parametrize("trust", sorted(TRUST_MODELS))
def test_round_trips_are_as_documented(trust):
    documented = [
        {code_spans(row[0])[0]: row[-1] for row in table(page, "trust")}[trust]
        for page in ("docs/protocol.md", "docs/how-a-run-works.md")
    ]
    if trust == "vertical":  # tests/strategies/test_vertical.py counts them
        strategy = build(VerticalKMeans)
        more = strategy.costs.round_trips - 2 * strategy.n_rounds
        assert documented == [f"2 T + {more}"] * 2
        return
    assert documented[0] == documented[1]
    factor, constant = re.fullmatch(r"(2 )?T \+ (\d)", documented[0]).groups()
    for strategy in (FastLloyd, Split):
        if runs(strategy, trust) or trust == "plain":
            strategy = build(strategy, trust)
            grid = run_counted(strategy)
            expected = (2 if factor else 1) * strategy.n_rounds + int(constant)
            assert grid.round_trips == strategy.report.round_trips == expected


@pytest.mark.claim("how-a-run-works", "k-clusters-d-columns")
def test_a_masked_answer_is_k_times_d_plus_2_plus_1_words():
    grid = run_counted(build(FastLloyd))
    replies = [decode_reply(from_content(reply.content)) for reply in grid.replies]
    answers = [reply for reply in replies if isinstance(reply, Answer)]
    sizes = [(len(answer.words), bool(answer.sealed)) for answer in answers]
    assert sizes == [(8 * (3 * (2 + 2) + 1), False)] * 2 * 6


@pytest.mark.claim("how-a-run-works", "answers-twice-another-round")
def test_the_report_lists_who_was_missing():
    faults = [
        Fault(client=3, round=1, kind="drop"),
        Fault(client=5, round=2, kind="crash"),
    ]
    report = simulate(build(FastLloyd), PARTITIONS, faults=faults).report
    assert [(missed.client, missed.round) for missed in report.dropped] == [
        (3, 1),
        (5, 2),
    ]
    assert report.answers == [5, 5]
    everyone = [Fault(client=i, round=1, kind="crash") for i in range(4)]
    with pytest.raises(
        TooFewClientsError, match="min_clients=3 answers to one query in round 1"
    ):
        simulate(build(FastLloyd), PARTITIONS, faults=everyone)


# --------------------------------------------------------------------------- guarantees


def unit_box(d):
    return Box([-1.0] * d, [1.0] * d)


@pytest.mark.claim("guarantees", "13")
@pytest.mark.parametrize(
    ("k", "d", "n"), [(15, 2, 5000), (16, 3, 273_280), (3, 10, 20_000)]
)
def test_formulas_of_the_lloyd_family(k, d, n):
    """Those of FastLloyd with relocation; tests of the algorithms have the papers'."""
    mu, root = mu_of_budget(1.0, 1e-6), math.sqrt(d)
    eta = 0.8 * root / k ** (1 / d)
    algorithm = FastLloydAlgorithm.planned(
        k, unit_box(d), PrivacyBudget(1.0, 1e-6), n_records=n
    )
    assert algorithm.radius_of(1) == pytest.approx(math.sqrt(root * eta) * 2**16, abs=1)
    assert algorithm.radius_of(2) == pytest.approx(eta * 2**16, abs=1)
    assert algorithm.n_rounds == int(min(max(mu * n / (k * root), 2), 8))
    m = math.sqrt(algorithm.n_rounds * (1 + 1 / math.sqrt(4 * d))) / mu
    found = [
        [each.noise_multiplier for each in group] for group in algorithm.plan().rounds
    ]
    np.testing.assert_allclose(
        found, [[m, m * (4 * d) ** 0.25]] * algorithm.n_rounds, rtol=1e-9
    )


@pytest.mark.claim("guarantees", "14")
@pytest.mark.claim("tables/differences", "theorem-5-1-bounds")
@pytest.mark.parametrize(("k", "documented"), [(15, "1.93"), (100, "4.81")])
def test_one_radius_for_all_rounds_costs_what_the_documents_say(k, documented):
    algorithm = FastLloydAlgorithm.planned(
        k, unit_box(2), BUDGET, n_records=50_000, relocation=False
    )
    wider = algorithm.radius_of(1) / algorithm.radius_of(2)
    round_mu2 = mu_of_budget(1.0, 1e-6) ** 2 / 7
    counts_mu2 = round_mu2 / (1 + math.sqrt(4 * 2))
    sums_mu2 = round_mu2 - counts_mu2
    mu = math.sqrt((wider**2 + 6) * sums_mu2 + 7 * counts_mu2)
    assert f"{epsilon_of_mu(mu, 1e-6):.2f}" == documented
    assert documented in (ROOT / "docs/guarantees/lloyd.md").read_text("utf-8")


@pytest.mark.claim("guarantees", "2")
@pytest.mark.claim("tables/differences", "n-size-data-set")
def test_a_counted_n_changes_the_rounds_at_one_record():
    def rounds(n):
        budget = PrivacyBudget(1.0, 1 / (n * math.log(n)))
        algorithm = FastLloydAlgorithm.planned(
            15, unit_box(2), budget, n_records=n, relocation=False
        )
        return algorithm.n_rounds

    assert (rounds(3026), rounds(3027)) == (2, 3)


@pytest.mark.claim("guarantees", "10")
def test_sums_that_do_not_fit_are_refused():
    FastLloydAlgorithm.planned(3, unit_box(2), BUDGET, n_records=10**13)
    with pytest.raises(ConfigurationError, match=r"2\^63"):
        FastLloydAlgorithm.planned(3, unit_box(2), BUDGET, n_records=2 * 10**14)
    assert 32_768 * 2**16 == 2**31  # what the documents say of 32 bits


@pytest.mark.claim("guarantees", "41")
def test_distributed_noise_is_as_documented():
    photo = Box([0] * 3, [255] * 3)
    strategy = FastLloyd(
        16, photo, BUDGET, 273_280, n_clients=20, trust="distributed-noise"
    )
    assert (strategy.min_clients, strategy.max_colluders) == (16, 2)
    assert f"{strategy.added_noise_factor:.2g}" == "1.2"
    assert f"{strategy.noise_factor:.2f}" == f"{math.sqrt(20 / 18):.2f}" == "1.05"
    algorithm = strategy.algorithm
    smallest = min(
        release.noise_multiplier * unit
        for t, releases in enumerate(strategy.plan.rounds, 1)
        for release, unit in zip(
            releases, (sensitivities(algorithm, t)[[0, -1]]), strict=True
        )
    )
    assert smallest > 2**19  # so that 1/pi^2 is below 1e-12 of the variance

    report = simulate(build(FastLloyd, "clients-only"), PARTITIONS).report
    assert report.noise_factor == pytest.approx(math.sqrt(6 / (5 - 1)))
    assert any(
        f"mu = {report.mu * 2:.4g}" in statement for statement in report.statements
    )
    report = simulate(build(FastLloyd, "distributed-noise"), PARTITIONS).report
    assert report.added_noise_factor == pytest.approx(math.sqrt(6 / (5 - 1)))
    assert report.noise_factor == pytest.approx(math.sqrt(6 / 5))


# --------------------------------------------------------------------------- protocol


def names_of(kind):
    """Return the fields of a struct as they are on the wire."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]


@pytest.mark.claim(
    "protocol",
    "sizes-messages-shares-one",
    "messages-messagepack-maps-encodings",
    "round-trips-2-t",
)
def test_tables_of_the_protocol():
    codes = {
        int(number): (name, text)
        for number, name, text in table("docs/protocol.md", "code")
    }
    assert codes == {int(code): (code.name, code.sentence) for code in Code}

    documented = [code_spans(row[0])[0] for row in table("docs/protocol.md", "field")]
    assert documented == names_of(RunDocument)
    assert PROTOCOL == "flower-kmeans/3"

    body = [
        code_spans(row[0])[0]
        for row in table("docs/protocol.md", "field of `Vertical`")
    ]
    assert body == names_of(Vertical)
    for heading, (module, kinds) in STRUCTS.items():
        rows = {
            code_spans(name)[0]: text
            for name, text in table("docs/protocol.md", heading)
        }
        structs = [getattr(module, name) for name in kinds.split()]
        assert set(rows) == {
            kind.__struct_config__.tag or kind.__name__ for kind in structs
        }
        for kind in structs:
            text = rows[kind.__struct_config__.tag or kind.__name__]
            assert list(code_spans(text)) == names_of(kind), kind
            optional = {
                field.encode_name
                for field in msgspec.structs.fields(kind)
                if field.default is not msgspec.NODEFAULT
            }
            assert set(re.findall(r"`(\w+)`\*", text)) == optional, kind


STRUCTS = {  # by the heading of their table
    "struct": (
        messages,
        "Enrol Keys Hold Ask Add Finish Abort Enrolled Wrapped Held Answer Added Finished "
        "Refusal Wrap Entry",
    ),
    "struct of vertical runs": (of_columns, "Turn Joined Sent Parcel Delivery"),
}


@pytest.mark.claim("protocol", "round-trips-2-t")
def test_sizes_and_moduli_of_vertical_runs():
    for row in table("docs/protocol.md", "k | levels"):
        k, n_levels, *sizes = map(float, row)
        made = moduli(int(k))
        public, data = packed_bytes(made.key), packed_bytes(made.data)
        run = costs(int(k), (1, 1), 16_384, 1, 1)
        found = [
            public,
            len(made.data) * public,
            2 * data,
            run.key_bytes,
            run.round_bytes,
        ]
        assert made.levels == n_levels == 14 + math.ceil(math.log2(k - 1))
        np.testing.assert_allclose(np.array(found) / 1e6, sizes, rtol=0.03)


@pytest.mark.claim("guarantees", "39")
@pytest.mark.claim("protocol", "messages-messagepack-maps-encodings")
def test_committees_of_the_protocol():
    text = (ROOT / "docs/protocol.md").read_text("utf-8").replace(",", "")
    columns = re.findall(
        r"(\d+) \((\d+)\)", re.search(r"^\| M \(c\) \|.*", text, re.MULTILINE)[0]
    )
    rows = table("docs/protocol.md", "M (c)")[:4]
    assert [name for name, *_ in rows] == ["f", "tau", "k", "R"]
    for (n_slots, c), *found in zip(columns, *(row[1:] for row in rows), strict=True):
        f = corrupt_positions(int(n_slots), int(c))
        sharing = secure_sum("shares").set_up(64, f, 64)
        expected = [f, sharing.privacy, sharing.packing, sharing.threshold]
        assert list(map(int, found)) == expected, n_slots


MODES = [
    *(
        (trust, keys)
        for trust in (*SHARED, "oblivious-server")
        for keys in ("relayed", "roster")
    ),
    ("trusted-server", "none"),
    ("plain", "none"),
]


def report_of(trust, keys, **facts):
    """Return the report of a run in this mode."""
    model = trust_model(trust)
    plan = build(Lloyd if trust == "plain" else FastLloyd, trust).plan
    committee = (
        CommitteeReport(tuple(range(6)), 6, 1, 4, 1) if model.has_committee else None
    )
    facts = {
        "min_clients": 5,
        "max_colluders": 1,
        "committee": committee,
        "n_slots": 6,
    } | facts
    return Report("FastLloyd", plan, model, keys, **facts)


@pytest.mark.claim("protocol", "report-states-order-importance")
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_the_report_says_what_section_11_requires(trust, keys):
    section = (
        (ROOT / "docs/protocol.md").read_text("utf-8").split("## 11")[1].split("## ")[0]
    )
    together, relayed, noise, one, blind = re.findall(
        r'"([^"]+)"', " ".join(section.split())
    )
    text = "\n".join(report_of(trust, keys).statements)
    assert f"Trust model: {trust}. Keys: {keys}." in text
    assert (together.replace("c clients", "1 client") in text) == (trust in SHARED)
    assert (relayed in text) == (keys == "relayed")
    assert ("passive" in text) == (keys == "relayed")
    assert (
        (noise in text)
        == (one.lower() in text.lower())
        == (trust == "oblivious-server")
    )
    assert (blind in text) == (trust in BLIND)
    assert "TLS is required" in text
    assert "Results are not protected against hostile clients." in text

    kept = "\n".join(report_of(trust, keys, ledger=True).statements)
    assert ("This guarantee covers one run." in text) == (trust != "plain")
    assert ("Every client states that it keeps a ledger" in kept) == (trust != "plain")
    assert "This guarantee covers one run." not in kept


@pytest.mark.claim("what-epsilon-means", "who-depends-on-trust")
@pytest.mark.parametrize("trust", [*SHARED, "oblivious-server", "trusted-server"])
def test_a_run_says_what_its_report_says_in_that_mode(trust):
    report = simulate(build(FastLloyd, trust), PARTITIONS).report
    facts = report.to_dict()
    keys = "relayed" if trust_model(trust).is_protected else "none"
    assert (facts["trust"], facts["keys"]) == (trust, keys)
    assert facts["ledger"] is False
    expected = report_of(trust, keys, committee=report.committee, levels=report.levels)
    assert facts["protects_against"] == expected.protects_against


@pytest.mark.claim("what-epsilon-means", "who-depends-on-trust")
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_who_a_run_protects_against_is_as_in_the_threat_model(trust, keys):
    """No, where the table has bold words; a number, where one noise share is left."""
    (row,) = [
        row
        for row in table("docs/threat-model.md", "trust and keys")
        if code_spans(row[0])[0] == trust and (keys == "none" or keys in row[0])
    ]
    report = report_of(trust, keys, ledger=True)
    answers = report.protects_against
    assert tuple(answers)[:4] == PARTIES[:4]
    for party, cell in zip(PARTIES[:4], row[1:], strict=True):
        assert answers[party].startswith("No") == ("**" in cell), party
        assert ("own noise share" in answers[party]) == ("own noise share" in cell), (
            party
        )
        if "own noise share" in cell:
            assert f"mu = {report.mu * 2:.4g}" in answers[party]
    partly = "if the server is passive" in row[3]
    assert answers["server and clients"].startswith("In part") == partly
    assert report.to_dict()["protects_against"] == answers


OF_OLD_COMMITS = {
    "docs/benchmarks.md": 1,  # what the others mean
    "docs/tables/speed.md": 1,
}
"""Scripts that pages still cite from earlier commits."""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_scripts_that_pages_cite_are_in_the_tree(page):
    text = " ".join(page.read_text("utf-8").split())
    assert text.count("git show ") == OF_OLD_COMMITS.get(page_id(page), 0)
    for name in re.findall(r"python (benchmarks/\w+\.py)", text):
        # The page on suites names one that its reader writes.
        assert (ROOT / name).is_file() or name == "benchmarks/alpha.py"
