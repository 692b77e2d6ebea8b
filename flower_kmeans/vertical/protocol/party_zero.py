"""Party 0 of a vertical run: its files, the assembly of keys, and its rounds.

Party 0 computes on the encrypted columns of the others, and learns the noisy counts and
sums of each round (docs/protocol.md, section 13, "A round").
"""

import hashlib
import math
import os
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np

from flower_kmeans.algorithms import plausibility
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.algorithms.state import State
from flower_kmeans.arrays import FloatArray, WordArray
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.leftovers import work_dir
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.wire import decode_arrays, encode_arrays
from flower_kmeans.vertical import keys as vertical_keys
from flower_kmeans.vertical.costs import disk_bytes
from flower_kmeans.vertical.parties import ComputingParty
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.messages import Turn
from flower_kmeans.vertical.protocol.parcels import (
    COLUMNS,
    DIGESTS,
    HALF,
    IDS,
    PUBLIC,
    RELIN,
    Planned,
)
from flower_kmeans.vertical.protocol.party_mail import PartyMail, named
from flower_kmeans.vertical.protocol.party_rows import half_widths_of
from flower_kmeans.vertical.protocol.party_session import PartySession
from flower_kmeans.vertical.ring import unpack
from flower_kmeans.vertical.store import Store

_FINDINGS = "findings"  # beside the arrays of a session's state
_require = RefuseError.unless


class Learned(NamedTuple):
    """Party 0's knowledge after a number of rounds."""

    state: State  # of the algorithm
    findings: FloatArray  # of all rounds so far, (findings, 6)


class PartyZero:
    """The computing party, between two turns."""

    def __init__(self, own: PartySession, policy: ClientPolicy) -> None:
        self._own = own
        self._policy = policy
        self._shape = own.shape
        self._algorithm = own.algorithm

    @property
    def _n_workers(self) -> int:
        others = (os.cpu_count() or 1) - 1
        return self._policy.workers or max(others, 1)

    # ------------------------------------------------------------------ files

    @cached_property
    def store(self) -> Store:
        """Files of the run: keys and encrypted columns."""
        directory = work_dir(self._policy, "vertical")
        if directory is None:
            expected = "Expected a policy with work_dir or state_dir."
            raise RefuseError(Code.POLICY, expected)
        if self._policy.work_dir is None:
            # Version 0.2 made it with a wider mode, in the closed state_dir.
            with suppress(FileNotFoundError):
                directory.chmod(0o700)
        name = self._own.doc_hash.hex()
        return Store(directory / name, self._own.progress.files)

    def require_space(self) -> None:
        """Require disk space for all files of the run."""
        shape = self._shape
        n_foreign = sum(shape.widths[1:])
        files = disk_bytes(
            shape.moduli,
            self._algorithm.n_records or 0,
            n_foreign,
            self._algorithm.domain.n_features,
            self._n_workers,
        )
        # Received keys stay on the disk until round 2.
        keys = sum(plan.n_bytes for plan in self._key_plans)
        self.store.require_space(files + keys)

    @property
    def _key_plans(self) -> list[Planned]:
        planned = parcels.due(self._own.run, 0, "load")
        return [plan for plan in planned if plan.number < IDS]

    # ------------------------------------------------------------------ set-up

    def take_parcels(self, request: Turn, mail: PartyMail) -> None:
        """Store the parcels of a set-up: columns as files for SEAL, and keys as received."""
        planned = {plan[:4]: plan for plan in parcels.due(self._own.run, 0, "load")}
        known = dict(self._own.progress.parcels)
        for delivery in request.deliveries:
            plan = planned.get(named(delivery))
            if plan is None:
                raise MessageError("Expected parcels of a set-up.")
            data = mail.unseal(plan, delivery)
            name = _name(plan)
            digest = hashlib.sha256(data).digest()
            is_same = known.setdefault(name, digest) == digest
            _require(is_same, Code.CONFLICT)
            if plan.number >= COLUMNS:
                self._keep_column(plan, data)
            else:
                self.store.write(name, [data])
        self._own.put(parcels=known, files=self.store.digests)

    def _keep_column(self, plan: Planned, data: bytes) -> None:
        q = self._shape.moduli
        slot = plan.sender
        is_of_sole_holder = self._shape.set_up(slot) == "keys"
        if is_of_sole_holder:
            nonce = data[: parcels.NONCE_BYTES]
            half = unpack(data[parcels.NONCE_BYTES :], q.data)
            words = vertical_keys.expand(q, nonce, half)
        else:
            words = unpack(data, q.data, (2,))
        chunk, number = divmod(plan.number - COLUMNS, self._shape.widths[slot])
        self._computing.take_column(slot, chunk, number, words)

    def take_keys(self) -> None:
        """Assemble the keys from a complete set-up."""
        wanted = parcels.due(self._own.run, 0, "load")
        is_complete = all(_name(plan) in self._own.progress.parcels for plan in wanted)
        _require(is_complete, Code.NEED)

        q = self._shape.moduli
        digits = (len(q.data),)
        found = {}
        for plan in self._key_plans:
            path = self.store.path(_name(plan))
            found[plan.sender, plan.number] = path.read_bytes()
        public = unpack(found[1, PUBLIC], q.key)
        shares = (
            unpack(found[holder, RELIN], q.key, digits)
            for holder in self._shape.holders
        )
        b = vertical_keys.total(shares, q.key)
        a = vertical_keys.relin_common(q, self._own.doc_hash)
        if self._shape.is_joint:
            self._require_agreement(found)
            a = unpack(found[1, HALF], q.key, digits)
        pk = vertical_keys.public_key(q, self._own.doc_hash, public)
        self._computing.take_keys(pk, np.stack([b, a], 1))

    def _require_agreement(self, found: dict[tuple[int, int], bytes]) -> None:
        """Require that the DIGESTS of all holders fit the sums PUBLIC and HALF."""
        halves = [found[1, PUBLIC], found[1, HALF]]
        own_digests = b"".join(hashlib.sha256(half).digest() for half in halves)
        digests = {data for (_, number), data in found.items() if number == DIGESTS}
        if digests != {own_digests}:
            raise RefuseError(
                Code.KEY, "Expected key holders that agree on their keys."
            )

    def forget_keys(self) -> None:
        """Remove the received keys. It must follow step 1, which needs them if it is repeated."""
        for plan in self._key_plans:
            self.store.remove(_name(plan))

    # ------------------------------------------------------------------ rounds

    @cached_property
    def _computing(self) -> ComputingParty:
        algorithm = self._algorithm
        moduli = self._shape.moduli
        radius = None
        if moduli.radius:
            radius = algorithm.reach * 2.0**-algorithm.fraction_bits
        return ComputingParty(
            moduli,
            self.store,
            self._own.session.secret,
            self._own.doc_hash,
            half_widths_of(algorithm),
            self._own.body.widths,
            radius,
            self._n_workers,
        )

    @property
    def n_begun(self) -> int:
        """Number of rounds whose step was answered."""
        return self._own.session.head + bool(self._own.progress.c1)

    @property
    def learned(self) -> Learned:
        """The state and the findings that the session keeps."""
        session = self._own.session
        no_findings = np.zeros((0, 6))
        if not session.state:
            return Learned(self._algorithm.initial_state(None), no_findings)
        arrays = decode_arrays(session.state)
        findings = arrays.pop(_FINDINGS, no_findings)
        return Learned(State(session.head, arrays), findings)

    def evaluate(self, t: int, columns: FloatArray, state: State) -> WordArray:
        """Return c1 of all values of a round, modulo q0, from encrypted columns.

        Parameters
        ----------
        t : int
            Number of the round.
        columns : array of shape (n, width)
            Party 0's columns.
        state : State
            State after round t - 1.
        """
        algorithm = self._algorithm
        own = columns[:, : self._computing.widths[0]]
        on_grid = algorithm.query(state).arrays["centroids"]
        centroids = on_grid * 2.0**-algorithm.fraction_bits
        return self._computing.step(t, own, centroids)

    def next_learned(self, t: int, shares: WordArray) -> Learned:
        """Return the knowledge after round t, from its values under all parties' noise.

        Parameters
        ----------
        t : int
            Number of the round.
        shares : array of shape (H, values), uint64
            The holders' words.
        """
        algorithm = self._algorithm
        before = self.learned
        values = self._computing.open(
            t, shares, lambda stream: self._own.noise(t, stream)
        )
        scale = 2.0**algorithm.fraction_bits / self._shape.moduli.unit
        grid = np.rint(values * scale).astype(np.int64)
        answer = Statistic({SUMS: grid[:, 1:], COUNTS: grid[:, 0]})

        n_noisy = self._own.body.n_noisy
        noise_factor = math.sqrt(n_noisy / self._own.run.document.noise_shares)
        found = plausibility.findings_of(algorithm, before.state, answer, noise_factor)
        findings = [before.findings, plausibility.to_array(found)]
        after = algorithm.update(before.state, answer)
        return Learned(after, np.concatenate(findings))

    def keep(self, t: int, learned: Learned, c1_digest: bytes) -> None:
        """Keep the knowledge before round t and the digest of its c1 in the session."""
        session = self._own.session
        session.head = t - 1
        arrays = {**learned.state.arrays, _FINDINGS: learned.findings}
        session.state = encode_arrays(arrays)
        self._own.put(c1=c1_digest, files=self.store.digests)

    def result(self, learned: Learned) -> bytes:
        """Return the run's encoded result, from the knowledge after the last round.

        All results of a run have one size, which the server sees.
        """
        algorithm = self._algorithm
        # The algorithm has centroids from the start.
        centroids = cast(FloatArray, algorithm.centroids(learned.state))
        counts = learned.state.arrays["counts"] * 2.0**-algorithm.fraction_bits
        findings = plausibility.padded(learned.findings, self._shape.n_rounds)
        return encode_arrays(
            {"centroids": centroids, "counts": counts, "findings": findings}
        )


def _name(plan: Planned) -> str:
    """Return the name of a parcel in party 0's store and session."""
    return f"parcel-{plan.sender}-{plan.number}"
