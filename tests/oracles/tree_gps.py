"""Exact fairness over a tree of tenants: a fluid server per node, and a server per leaf.

It is written from `core/README.md`, not from the code under test. Service goes to all busy nodes at
once, from one event to the next, and between two events all rates are constant. The key of an
application is found by serving a copy of the tree until it is done.
"""

import copy
from dataclasses import dataclass, field
from fractions import Fraction

from tests.oracles.gps import ExactFairShare, GpsServer

ROOT = ""


@dataclass
class Leaf:
    """Leaf of the tenant tree, with GPS among its applications, and their remaining work."""

    gps: GpsServer = field(default_factory=GpsServer)
    left: dict[str, Fraction] = field(default_factory=dict)
    finished: dict[str, Fraction] = field(default_factory=dict)
    """Virtual time of the root when the leaf's last work was done."""
    order: dict[str, int] = field(default_factory=dict)
    asked: Fraction = Fraction(1)
    """Weight of the application that arrived last."""

    def first(self) -> str | None:
        """Return the application that GPS serves when the leaf gets service, or None."""
        waiting = [name for name, work in self.left.items() if work > 0]
        return min(waiting, key=lambda n: (self.gps.tag(n), self.order[n]), default=None)


class ExactTreeShare(ExactFairShare):
    """Exact fair sharing over a tree of tenants; `gps` is the root's server.

    Names of nodes are their paths; the leaf of a node's own applications is `path/.`.
    """

    def __init__(self, weights: dict[str, Fraction] | None = None) -> None:
        super().__init__()
        self.weights = weights or {}
        self.nodes: dict[str, GpsServer] = {ROOT: self.gps}
        self.leaves: dict[str, Leaf] = {}
        self.leaf_of: dict[str, str] = {}

    def open(self, name: str, tenant: str, predicted: Fraction, weight: Fraction) -> None:
        """Charge a new application of a tenant its predicted cost."""
        parts = tenant.split("/")
        for depth in range(1, len(parts)):
            self._branch("/".join(parts[:depth]))
        leaf = f"{tenant}/." if tenant in self.nodes else tenant
        self.leaves.setdefault(leaf, Leaf())
        self.leaf_of[name] = leaf
        self.arrive(name, predicted, weight)

    def keys(self) -> dict[str, Fraction]:
        """Return the root's virtual time at which each application is done."""
        later = copy.deepcopy(self)
        later._serve(ROOT, sum(self.gps.owed.values(), Fraction(0)))
        return {
            name: later.leaves[leaf].finished[name]
            for name, leaf in later.leaf_of.items()
            if name in later.leaves[leaf].finished
        }

    def key(self, name: str) -> Fraction:
        """Return the root's virtual time at which one application is done."""
        return self.keys()[name]

    def _branch(self, path: str) -> None:
        if path in self.nodes:
            return
        self.nodes[path] = node = GpsServer()
        above = self.nodes[_parent(path)]
        above.join(path, Fraction(1))
        if (leaf := self.leaves.pop(path, None)) is not None:
            own = f"{path}/."
            self.leaves[own] = leaf
            self.leaf_of = {n: own if at == path else at for n, at in self.leaf_of.items()}
            node.join(own, leaf.asked)
            node.owed[own] = above.owed[path]
        above.weight[path] = self.weights.get(path, Fraction(1))

    def _join(self, name: str, weight: Fraction) -> None:
        path = self.leaf_of[name]
        leaf = self.leaves[path]
        leaf.asked = weight
        leaf.gps.join(name, weight)
        leaf.left.setdefault(name, Fraction(0))
        leaf.order.setdefault(name, len(self.leaf_of))
        self.nodes[_parent(path)].join(path, self.weights.get(path, weight))

    def _add_work(self, name: str, work: Fraction) -> None:
        path = self.leaf_of[name]
        leaf = self.leaves[path]
        # Without work it joins again, at the larger of finish tag and virtual time.
        if leaf.gps.owed[name] == 0:
            del leaf.gps.owed[name]
            leaf.gps.join(name, leaf.gps.weight[name])
        leaf.gps.add_work(name, work)
        leaf.left[name] += work
        if leaf.left[name] > 0:
            leaf.finished.pop(name, None)
        while path != ROOT:
            self.nodes[_parent(path)].add_work(path, work)
            path = _parent(path)
        if leaf.left[name] == 0:
            leaf.finished[name] = self._done_up_to(name)

    def _done_up_to(self, name: str) -> Fraction:
        """Return when an application and all before it are done, in the root's virtual time."""
        later = copy.deepcopy(self)
        leaf = later.leaves[self.leaf_of[name]]
        place = (leaf.gps.tag(name), leaf.order[name])
        before = [n for n, w in leaf.left.items() if w and (leaf.gps.tag(n), leaf.order[n]) < place]
        later._serve(ROOT, sum(self.gps.owed.values(), Fraction(0)))
        return max([leaf.finished[n] for n in before], default=self.gps.virtual_time)

    def _remove_work(self, name: str, work: Fraction) -> None:
        path = self.leaf_of[name]
        leaf = self.leaves[path]
        leaf.gps.remove_work(name, work)
        taken = min(work, leaf.left[name])
        if taken > 0:
            self._serve_application(leaf, name, taken)
        self._serve_leaf(leaf, work - taken)
        while path != ROOT:
            above = self.nodes[_parent(path)]
            owed = min(work, above.owed[path])
            above.remove_work(path, owed)
            path, excess = _parent(path), work - owed
            self._serve(path, excess)

    def _give_service(self, work: Fraction) -> None:
        self._serve(ROOT, work)

    def _serve(self, path: str, work: Fraction) -> None:
        """Serve all nodes below a node, event by event; virtual time passes only at the root."""
        while work > 0 and self.nodes[path].busy():
            rates = self._rates(path)
            step = min(work, *(self._until_event(name, rate) for name, rate in rates.items()))
            self.nodes[path].give_service(step)
            for name, rate in rates.items():
                if name in self.nodes:
                    self.nodes[name].give_service(step * rate)
                else:
                    self.leaves[name].gps.give_service(step * rate)
                    self._serve_leaf(self.leaves[name], step * rate)
            work -= step

    def _rates(self, path: str) -> dict[str, Fraction]:
        """Return the fraction of a node's service that each busy child receives."""
        rates: dict[str, Fraction] = {}
        above = [(path, Fraction(1))]
        while above:
            node, rate = above.pop()
            gps = self.nodes[node]
            total = sum((gps.weight[child] for child in gps.busy()), Fraction(0))
            for child in sorted(gps.busy()):
                rates[child] = rate * gps.weight[child] / total
                if child in self.nodes:
                    above.append((child, rates[child]))
        return rates

    def _until_event(self, name: str, rate: Fraction) -> Fraction:
        """Return the node's service until a child runs out of work."""
        owed = self.nodes[_parent(name)].owed[name] / rate
        if name in self.nodes:
            return owed
        leaf = self.leaves[name]
        first = leaf.first()
        return owed if first is None else min(owed, leaf.left[first] / rate)

    def _serve_leaf(self, leaf: Leaf, work: Fraction) -> None:
        while work > 0 and (name := leaf.first()) is not None:
            taken = min(work, leaf.left[name])
            self._serve_application(leaf, name, taken)
            work -= taken

    def _serve_application(self, leaf: Leaf, name: str, work: Fraction) -> None:
        leaf.left[name] -= work
        if leaf.left[name] == 0:
            leaf.finished[name] = self.gps.virtual_time


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
