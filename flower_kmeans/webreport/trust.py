"""Who sees what: a picture of the trust model, and who the run protects against."""

from dataclasses import dataclass, replace

from flower_kmeans.privacy.report import Trust
from flower_kmeans.webreport.charts import drawing
from flower_kmeans.webreport.guarantee import PARTIES
from flower_kmeans.webreport.markup import Markup, join, paragraph, section, table, tag
from flower_kmeans.webreport.outcome import Outcome

_WIDTH, _HEIGHT = 440, 430


@dataclass(frozen=True)
class _Flow:
    """What travels in a trust model; the kinds are masked, noisy and exact."""

    at_clients: tuple[tuple[str, str], ...]
    sent: tuple[str, str]
    at_server: str | None
    server_sees: str
    returned: tuple[str, str]
    clients_have: tuple[str, ...]
    server_has: tuple[str, ...]
    server_kind: str


_MASKS = _Flow(
    at_clients=(("mask", "masked"),),
    sent=("masked words", "masked"),
    at_server="adds noise",
    server_sees="masked words, and its own noise",
    returned=("noisy sums, still masked", "masked"),
    clients_have=("noisy sums,", "centroids"),
    server_has=("no sum, no count,", "no centroid"),
    server_kind="masked",
)
_SHARES = _Flow(
    at_clients=(("noise share", "noisy"), ("secret shares", "masked")),
    sent=("sealed shares, with noise", "masked"),
    at_server=None,
    server_sees="sealed shares; then noisy sums",
    returned=("noisy sums", "noisy"),
    clients_have=("noisy sums,", "centroids"),
    server_has=("noisy sums,", "centroids"),
    server_kind="noisy",
)
_BLIND_SHARES = replace(
    _SHARES,
    server_sees="sealed shares only",
    returned=("sealed sum-shares", "masked"),
    server_has=_MASKS.server_has,
    server_kind="masked",
)
_TRUSTED = _Flow(
    at_clients=(),
    sent=("exact sums of each client", "exact"),
    at_server="adds noise",
    server_sees="every client's exact sums",
    returned=("noisy sums", "noisy"),
    clients_have=("noisy sums,", "centroids"),
    server_has=("exact sums", "of every client"),
    server_kind="exact",
)
_PLAIN = replace(
    _TRUSTED,
    at_server=None,
    returned=("exact sums", "exact"),
    clients_have=("exact sums,", "centroids"),
)
_KINDS = {
    "masked": "masked or sealed: uniform numbers without the clients' keys",
    "noisy": "noisy: protected as far as the guarantee goes",
    "exact": "exact: not protected",
}
_KEYS = {
    "relayed": "The clients' public keys were relayed by the server.",
    "roster": "The clients' public keys are pinned by a roster.",
}


def _flow_of(model: Trust) -> _Flow:
    if not model.is_protected:
        return _TRUSTED if model.is_private else _PLAIN
    if not model.shares_noise:
        return _MASKS
    return _BLIND_SHARES if model.is_blind else _SHARES


def trust_section(outcome: Outcome) -> Markup:
    """Return the section about who sees what."""
    report = outcome.report
    rows = [(PARTIES[party], _badge(words)) for party, words in report.protects_against.items()]
    against = table(
        ["Who", "Do records stay protected?"],
        rows,
        caption="What the run protects against",
    )
    words = f"Trust model: {report.trust}."
    if report.keys in _KEYS:
        words += " " + _KEYS[report.keys]
    picture = tag("figure", trust_picture(outcome), _legend(report.trust_model))
    return section(
        "trust", "Who sees what", paragraph(words), tag("div", picture, against, class_="pair")
    )


def trust_picture(outcome: Outcome) -> Markup:
    """Return a drawing of what clients send, who adds noise, and who has what in the end."""
    report, flow = outcome.report, _flow_of(outcome.report.trust_model)
    n = report.n_clients
    few = {0: "No client took part", 1: "1 client holds the records"}
    parts = [_words(_WIDTH / 2, 16, few.get(n, f"{n} clients hold the records"), "head")]
    names = ["client 1", "client 2", f"client {n}"][:n]
    places = {0: (), 1: (160,), 2: (8, 312)}.get(n, (8, 140, 312))
    for name, x in zip(names, places, strict=True):
        parts.append(_client(x, name, flow))
        target = 110 + (x + 60) / 2
        line = f"M{x + 60},122 L{target:g},192"
        parts.append(tag("path", d=line, class_=f"flow {flow.sent[1]}"))
        parts.append(_head(target, 198, flow.sent[1]))
    if n > 3:
        parts.append(_words(286, 78, "…", "head"))
    parts.append(_pill(_WIDTH / 2, 157, *flow.sent))
    parts.append(tag("rect", x=80, y=200, width=280, height=62, rx=8, class_="party"))
    parts.append(_words(_WIDTH / 2, 222, "Server", "head"))
    if flow.at_server is not None:
        parts.append(_pill(312, 218, flow.at_server, "noisy"))
    parts.append(_words(_WIDTH / 2, 246, f"sees {flow.server_sees}"))
    parts.append(tag("path", d="M220,262 V322", class_=f"flow {flow.returned[1]}"))
    parts.append(_head(220, 328, flow.returned[1]))
    parts.append(_pill(_WIDTH / 2, 291, *flow.returned))
    result = "noisy" if report.trust_model.is_private else "exact"
    for x, name, has, kind in (
        (8, "Clients have", flow.clients_have, result),
        (154, "Server has", flow.server_has, flow.server_kind),
        (300, "Readers have", ("centroids,", f"{result} sizes, report"), result),
    ):
        parts.append(tag("rect", x=x, y=330, width=132, height=78, rx=8, class_=f"box {kind}"))
        parts.append(_words(x + 66, 352, name, "head"))
        parts += [_words(x + 66, 374 + 18 * i, words) for i, words in enumerate(has)]
    described = (
        f"{report.n_clients} clients send {flow.sent[0]}. The server sees {flow.server_sees}"
        f"{' and adds the noise' if flow.at_server else ''}. Clients have "
        f"{' '.join(flow.clients_have)}; the server has {' '.join(flow.server_has)}."
    )
    title = f"Who sees what under {report.trust}"
    return drawing("trust-picture", title, described, *parts, width=_WIDTH, height=_HEIGHT - 10)


def _badge(words: str) -> Markup:
    """Return a sentence of the report with its first words set off."""
    for start, kind in (("Yes", "yes"), ("In part", "part"), ("No", "no")):
        if words.startswith(f"{start}:"):
            return join([tag("span", start, class_=f"badge {kind}"), words[len(start) + 1 :]])
    return join([words])


def _legend(model: Trust) -> Markup:
    flow = _flow_of(model)
    shown = {flow.sent[1], flow.returned[1], *(kind for _, kind in flow.at_clients)}
    shown.add("noisy" if model.is_private else "exact")
    keys = [
        tag("span", tag("i", class_=f"key {kind}"), words)
        for kind, words in _KINDS.items()
        if kind in shown
    ]
    return tag("figcaption", *keys, class_="legend")


def _client(x: float, name: str, flow: _Flow) -> Markup:
    parts = [tag("rect", x=x, y=26, width=120, height=96, rx=8, class_="party")]
    parts.append(_words(x + 60, 45, name, "head"))
    for i in range(3):
        line = f"M{x + 30},{55 + 6 * i} h60"
        parts.append(tag("path", d=line, class_="record"))
    if not flow.at_clients:
        parts.append(_words(x + 60, 96, "adds nothing"))
    for i, (words, kind) in enumerate(flow.at_clients):
        shift = 10 if len(flow.at_clients) == 1 else 0
        parts.append(_pill(x + 60, 85 + 24 * i + shift, words, kind))
    return tag("g", *parts)


def _pill(x: float, y: float, words: str, kind: str) -> Markup:
    """Return words on a rounded background, with their middle at a place."""
    width = 7.0 * len(words) + 18
    back = tag(
        "rect", x=f"{x - width / 2:g}", y=f"{y - 11:g}", width=f"{width:g}", height=21, rx=10.5,
        class_=f"pill {kind}",
    )  # fmt: skip
    return tag("g", back, _words(x, y + 4, words))


def _words(x: float, y: float, words: str, kind: str = "words") -> Markup:
    return tag("text", words, x=f"{x:g}", y=f"{y:g}", text_anchor="middle", class_=f"label {kind}")


def _head(x: float, y: float, kind: str) -> Markup:
    path = f"M{x - 6:g},{y - 9:g} L{x:g},{y:g} L{x + 6:g},{y - 9:g} Z"
    return tag("path", d=path, class_=f"head-of {kind}")
