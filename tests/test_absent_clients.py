"""Clients who are away in some rounds, alone in some, or never seen: each is audited by what there is of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import refuses
from test_recordings_as_they_are import NETS, Loop, audit, keep

from leakscope.attacks.whitened import InOut
from leakscope.audits.membership.request import request_recording
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Knowledge, View
from leakscope.core.rng import seeded
from leakscope.games import Membership
from leakscope.training.recording import RecordedChannel


def away(*absent: tuple[int, str]):
    """An upload of every client, but for these rounds and clients."""
    return lambda r, client, sent, state: None if (r, client) in absent else state


def name_attacks(folder, **options) -> list[str]:
    """Those that an audit plays unless it is told which."""
    records = Loop().candidates()
    names = np.array(records.values["client"])[records.private["client"]]
    np.savez(folder / "candidates.npz", x=records.x.numpy(), y=records.y.numpy(), client=names)
    asked = {"client": "client", "label": "y", "model": "MLP", "seen": "sum", "centred": False}
    asked |= {"records": False, "drop": (), "trials": 100, "seeds": 1, "trust": ()}
    plan = request_recording(str(folder / "candidates.npz"), recording=folder / "run", **(asked | options))
    return [attack["name"] for attack in plan["cell"][0]["game"]["attacks"]]


@pytest.mark.parametrize("seen", ["sum", "broadcast"])
def test_who_is_always_there_is_regressed_whoever_drops_out(tmp_path, seen):
    keep(tmp_path / "run", Loop(), away((2, "site-0")))
    every = name_attacks(tmp_path, seen=seen)
    assert {"InOut", "JointRegression"} <= {*every}
    for full in ({"rounds": "0-1"}, {"clients": ["site-1,site-2"]}):
        chosen = name_attacks(tmp_path, seen=seen, **full)
        assert "JointRegression" in chosen
        assert "InOut" not in chosen


def test_sums_that_everyone_misses_once_are_held_against_each_other_only(tmp_path):
    keep(tmp_path / "run", Loop(), away((0, "site-0"), (1, "site-1"), (2, "site-2")))
    chosen = name_attacks(tmp_path)
    assert "InOut" in chosen
    assert "JointRegression" not in chosen


def test_rounds_of_which_nobody_knows_who_took_part_tell_nobody_apart(tmp_path):
    """Global models alone, of a round that failed: steps of it are seen, and not whose."""
    keep(tmp_path / "run", Loop(), away((0, "site-0"), *((1, f"site-{i}") for i in range(3))))
    chosen = name_attacks(tmp_path, seen="broadcast")
    assert "JointRegression" in chosen
    assert "InOut" not in chosen


def scores(found, attack: int) -> dict[str, object]:
    return {client.name: client.scores for client in found.attacks[attack].clients}


def test_a_client_that_uploads_alone_is_scored_without_peers_and_that_is_said(tmp_path):
    """site-0 in rounds 0 and 1, the others in rounds 2 and 3; site-1 alone in round 3."""
    others = [(r, f"site-{i}") for r in (0, 1) for i in (1, 2)]
    keep(tmp_path / "run", Loop(), away(*others, (2, "site-0"), (3, "site-0"), (3, "site-2")))
    assert name_attacks(tmp_path, seen="uploads")[0] == "FedMIA"
    attacks = [{"name": "FedMIA"}, {"name": "Whitened", "by_class": True}]
    found = audit(tmp_path / "run", Loop(), attacks=attacks)
    peers, plain = scores(found, 0), scores(found, 1)
    assert peers["site-0"] == plain["site-0"]
    assert peers["site-2"] != plain["site-2"]
    assert any("site-0 in 2 of 2 rounds, site-1 in 1 of 2 rounds" in remark for remark in found.remarks)
    alone = audit(tmp_path / "run", Loop(), attacks=attacks[1:])
    assert not any("alone" in remark for remark in alone.remarks)


def test_clients_in_none_of_the_steps_that_are_seen_are_left_out_and_no_non_members(tmp_path):
    """site-0 in the last round only, whose step is not looked at."""
    keep(tmp_path / "run", Loop(), away((0, "site-0"), (1, "site-0"), (1, "site-1")))
    asked = {"seen": "broadcast", "rounds": (0, 1, 2), "attacks": [{"name": "InOut"}, {"name": "Cosine"}]}
    found = audit(tmp_path / "run", Loop(), **asked)
    assert found.watched == ("site-1", "site-2")
    assert found.took_part == (1, 2)
    assert found.known + found.held + found.others == 500
    assert any("about whom nothing is said: site-0" in remark for remark in found.remarks)
    words = "site-0 took part in none of the rounds that are looked at"
    refuses(DataError, words, audit, tmp_path / "run", Loop(), clients=("site-0",), **asked)


def test_in_and_out_refuses_a_client_that_was_never_in(tmp_path):
    recording = keep(tmp_path / "run", Loop(), away(*((r, "site-0") for r in range(3))))
    channel = RecordedChannel(recording, NETS["plain"](), ("site-0",), (0, 1, 2), "broadcast")
    data = Loop().candidates()
    batch = Batch(data, torch.arange(20)[:, None])
    known = data.take(torch.arange(200, 260))
    knowledge = Knowledge(Membership(known.take(torch.arange(0)), known), channel, 60)
    guess = InOut()(knowledge, seeded(100))
    view = View(channel(batch, torch.zeros(20), torch.Generator()), {"candidates": batch})
    refuses(ArgumentError, "InOut needs a round in which the client took part", guess, view)
