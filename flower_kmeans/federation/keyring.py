"""A client's keys: from a file, by its roster, or relayed (docs/protocol.md, section 5).

Whatever is wrong with a file, a leader or an envelope ends in a `ConfigurationError` or a
`MessageError` here; the member turns both into the code KEY, and the text stays in its log.
"""

from collections.abc import Mapping

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.federation.life import Life
from flower_kmeans.federation.policy import ClientPolicy
from flower_kmeans.privacy.randomness import token
from flower_kmeans.secagg import keys


class Keyring:
    """The keys of one client in one run, for as long as it handles one message.

    Parameters
    ----------
    policy : ClientPolicy
        Names the files.
    source : str
        ``keys`` of the run document.

    Attributes
    ----------
    identity : Identity or None
        With a roster, who the client is on it.

    Raises
    ------
    ConfigurationError
        If the run needs a file that the policy does not name, or that cannot be used.
    """

    def __init__(self, policy: ClientPolicy, source: str) -> None:
        self._file_key = policy.read_group_key() if source == "file" else None
        self.identity = policy.read_identity() if source == "roster" else None
        if source == "file" and self._file_key is None:
            raise ConfigurationError("Expected group_key_file in the policy. Got none.")
        if source == "roster" and self.identity is None:
            raise ConfigurationError(
                "Expected roster_file and member_key_file in the policy. Got neither."
            )

    def public_key(self, life: Life) -> bytes:
        """Return the public key that the client enrols with; empty where it needs none."""
        if self.identity is not None:
            return self.identity.public
        return keys.public_key(life.exchange_secret) if life.exchange_secret else b""

    def key_id(self, doc_hash: bytes) -> bytes | None:
        """Return by what a server sees whether clients hold the same key file."""
        return None if self._file_key is None else keys.key_id(self._file_key, doc_hash)

    def is_own_place(self, index: int, m: int) -> bool:
        """Return whether a place in a cohort is the client's: with a roster, only one is."""
        identity = self.identity
        return identity is None or (index, m) == (identity.place, len(identity.roster))

    def lead(
        self, life: Life, doc_hash: bytes, members: tuple[bytes, ...] = ()
    ) -> tuple[bytes, Mapping[bytes, bytes]]:
        """Seal a group secret of the client's, which the life keeps, for every member.

        Parameters
        ----------
        life : Life
        doc_hash : bytes
        members : tuple of bytes
            Public keys of the members, where keys are relayed. With a roster the members are
            those on it, present or not, in its order.

        Returns
        -------
        leader : bytes
            Ephemeral and lasting public key of this client, 64 bytes.
        envelopes : mapping of bytes to bytes
            The envelope of each public key.

        Raises
        ------
        MessageError
            If a public key is not acceptable.
        """
        static = None
        if self.identity is not None:
            members, static = self.identity.roster.keys, self.identity.secret
        life.lead_secret = life.lead_secret or token(keys.KEY_BYTES)
        return keys.make_envelopes(
            life.lead_secret, members, doc_hash, token(keys.KEY_BYTES), static
        )

    def open(
        self, life: Life, doc_hash: bytes, leader: bytes | None, envelope: bytes | None
    ) -> bytes:
        """Return the group key of the run, from the file or out of an envelope.

        Raises
        ------
        MessageError
            If there is no envelope, it was not made for this client, or its leader is not on the
            client's own roster.
        """
        if self._file_key is not None:
            return keys.group_key(self._file_key, doc_hash)
        if leader is None or envelope is None:
            raise MessageError("There is no envelope for this client.")
        own, pinned = life.exchange_secret, self.identity is not None
        if self.identity is not None:
            own = self.identity.secret
            if leader[keys.KEY_BYTES :] not in self.identity.roster.keys:
                raise MessageError("The leader is not on this client's roster.")
        secret = keys.open_envelope(envelope, leader, own, doc_hash, pinned=pinned)
        return keys.group_key(secret, doc_hash)
