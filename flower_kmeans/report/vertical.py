"""What the report of a vertical run states: who sees what, and what the guarantee rests on.

The words are those of docs/threat-model.md, "Vertical runs", for the parties of this run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NEIGHBOURS = "one record replaced by another; n_records is public"


@dataclass
class VerticalReport:
    """The parties of a vertical run, and what they sent."""

    columns: tuple[tuple[str, ...], ...]  # of each party, by slot
    key_holders: int  # H: slots 1 to H hold the key
    max_colluders: int  # t: how many of party 0 and the key holders may pool their noise
    keys: str  # "roster" or "relayed"
    rho: float  # norm of a record's memberships at most
    soft: float  # the part of ``rho`` that is proved
    check_ids: bool  # whether party 0 compared row ids before it computed
    n_values: int  # that the key holders open in the run
    bits: float  # that one opened word reveals at most to a party 0 that breaks the protocol
    sent_bytes: int = 0  # of the parcels, as parties sent them
    delivered_bytes: int = 0  # and as they were delivered

    @property
    def n_parties(self) -> int:
        """N."""
        return len(self.columns)

    @property
    def noise_shares(self) -> int:
        """H + 1 - t: so many shares make the planned noise together."""
        return self.key_holders + 1 - self.max_colluders

    @property
    def noise_factor(self) -> float:
        """Standard deviation of the noise over the planned one, ``sqrt((H + 1) / (H + 1 - t))``."""
        return math.sqrt((self.key_holders + 1) / self.noise_shares)

    @property
    def holders(self) -> str:
        """The key holders in words."""
        return _parties(1, self.key_holders)

    @property
    def trust_table(self) -> tuple[tuple[str, str, str], ...]:
        """Rows of who, what they see, and what they learn."""
        h, several = self.key_holders, self.key_holders > 1
        encrypts = self.n_parties - 1 > h
        rows: list[tuple[str, str, str]] = []

        def add(who: str, sees: str, learns: str) -> None:
            rows.append((who, sees, learns))

        add(
            "party 0",
            f"ciphertexts; opened values under the noise of {self.holders}",
            "the noisy sums of every round; nothing of another party's columns",
        )
        add(
            "a key holder" if several else "party 1, the key holder",
            "pseudo-random words; the last centroids and counts",
            "the result, under all noise but its own",
        )
        if several:
            weaker = math.sqrt(self.noise_shares)
            words = "the result, under the noise of party 0 alone"
            if weaker > 1:
                words += f": mu is {weaker:.4g} times the planned one"
            add("all key holders together", "the key, and words without their constants", words)
            less = "" if self.max_colluders >= h else ", which is less than planned"
            words = f"the result, under the noise of one key holder{less}"
            add("party 0 and all key holders but one", "the noise of all but one", words)
        words = "every encrypted column. No column of party 0 leaves it in any other form than"
        words += " the result"
        add(f"party 0 and {self.holders} together", "the key and all ciphertexts", words)
        if encrypts:
            others = _parties(h + 1, self.n_parties - 1)
            add(others, "the last centroids and counts", "the result, under all noise")
        add("the server", "the run document, sizes, times, who failed", "nothing else")
        if self.keys == "relayed":
            more = ", and the columns of parties that only encrypt" if encrypts else ""
            add(
                "a server that breaks the protocol",
                "whatever it does in the place of a party, for it relays the keys",
                f"as a malicious party 0{more}",
            )
        return tuple(rows)

    @property
    def protects_against(self) -> dict[str, str]:
        """Whether records stay protected against the parties that every report names."""
        everyone = f"party 0 and {self.holders} together read every encrypted column."
        few = f"up to {self.max_colluders} of party 0 and the key holders see the noisy sums only"
        alone = "it relays sealed messages, and sees no sum, no column and no centroid."
        active = "No: it relays the keys, so it can take the place of a party."
        both = "if all follow the protocol"
        if self.keys == "roster":
            active = f"Yes: {alone} Keys are pinned by a roster."
            both = "the server adds nothing to what parties know. If these follow the protocol"
        return {
            "passive server": f"Yes: {alone}",
            "active server": active,
            "server and clients": f"In part: {both}, {few}; {everyone}",
            "clients": f"In part: if they follow the protocol, {few}; {everyone}",
        }

    def statements(self, seconds: float, round_trips: int) -> Iterator[str]:
        """Yield what all parties must know, in plain sentences."""
        yield (
            "The server relays sealed messages and sees no sum, no column and no centroid; party 0 "
            "sees noisy sums, and every party learns the result."
        )
        yield (
            f"The guarantee is for {NEIGHBOURS}. It is computational (ring learning with errors) "
            "and holds against parties that follow the protocol (honest but curious). It protects "
            "a record's values, not that the record is there: parties with aligned rows know it."
        )
        alone = "party 0 and all key holders but one cannot."
        if self.key_holders == 1:
            alone = "neither of the two alone can."
        yield f"Party 0 and {self.holders} together can read every encrypted column; {alone}"
        for slot in range(self.key_holders + 1, self.n_parties):
            yield (
                f"Party {slot} only encrypts: it trusts that party 0 and {self.holders} do not "
                "all collude."
            )
        yield (
            "Labels of single records are no result of the run, for they would not be private. The "
            "nearest centroid in a party's own columns follows from the result alone."
        )
        yield (
            f"Party 0 and {self.holders} add noise: {self.noise_factor:.4g} times the planned "
            f"standard deviation, sqrt((H + 1)/(H + 1 - t)) with H = {self.key_holders} and "
            f"t = {self.max_colluders}."
        )
        yield (
            f"Noise is calibrated to memberships of norm rho = {self.rho:.5g}: {self.soft:.5g} for "
            f"soft memberships, which is proved, and {self.rho - self.soft:.2g} for errors of the "
            "encryption, which is measured and not proved."
        )
        yield (
            f"A party 0 that breaks the protocol can choose what is opened. This is not prevented: "
            f"at most {self.bits:.3g} bits in each of {self.n_values} words, "
            f"{self.bits * self.n_values:,.0f} bits in the run."
        )
        yield (
            "Party 0 compares the row ids of all parties with its own before it computes."
            if self.check_ids
            else "Row ids were not compared, only the number of rows: whether all parties have the "
            "same records in the same order, nobody has checked."
        )
        yield (
            "Keys are pinned by a roster: nobody else can take a party's slot."
            if self.keys == "roster"
            else "Keys were relayed by the server, which protects against a passive server only."
        )
        yield "TLS is required between parties and server."
        if round_trips:
            yield (
                f"Round trips: {round_trips}, in {seconds:.3g} s. Parties sent "
                f"{self.sent_bytes / 1e6:.4g} MB and received {self.delivered_bytes / 1e6:.4g} MB."
            )
        yield "Results are not protected against hostile parties."

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return {
            **vars(self),
            "columns": [list(names) for names in self.columns],
            "n_parties": self.n_parties,
            "measured": self.rho - self.soft,
            "trust_table": [
                dict(zip(("who", "sees", "learns"), row, strict=True)) for row in self.trust_table
            ],
        }


def _parties(first: int, last: int) -> str:
    numbers = [str(slot) for slot in range(first, last + 1)]
    if len(numbers) == 1:
        return f"party {numbers[0]}"
    return f"parties {', '.join(numbers[:-1])} and {numbers[-1]}"
