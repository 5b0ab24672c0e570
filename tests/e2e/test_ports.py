"""Ports that move between servers of one plan, and servers that are started without waiting."""

from __future__ import annotations

from tests.e2e.lab import Lab, alive


def test_two_servers_swap_their_ports(lab: Lab) -> None:
    lab.fake("alpha", "beta", "gamma")
    lab.apply()
    before = {name: lab.pid(name) for name in ("alpha", "beta", "gamma")}
    first, second = lab.ports["alpha"], lab.ports["beta"]
    lab.edit(f"port: {first}", "port: SWAP")
    lab.edit(f"port: {second}", f"port: {first}")
    lab.edit("port: SWAP", f"port: {second}")
    done = lab.apply()
    assert "another server takes its port" in done.err
    rows = lab.status()
    assert (rows["alpha"]["port"], rows["beta"]["port"]) == (second, first)
    assert {row["health"] for row in rows.values()} == {"Ready"}
    assert lab.pid("gamma") == before["gamma"]
    assert not alive(before["alpha"])
    assert lab.idle()


def test_a_renamed_server_gets_the_port_only_when_the_old_one_may_go(lab: Lab) -> None:
    lab.fake("old")
    lab.apply()
    old = lab.pid("old")
    lab.edit("name: old", "name: new")
    refused = lab.run("apply", "-f", "models.yaml", "--yes")
    assert refused.code == 7
    assert "held by server.old" in refused.err
    assert alive(old)
    lab.ok("apply", "-f", "models.yaml", "--yes", "--prune", "--allow-empty")
    assert not alive(old)
    assert set(lab.status()) == {"new"}
    assert lab.idle()


def test_without_waiting_the_next_plan_proves(lab: Lab) -> None:
    lab.fake("slow", options="--fake-delay 2")
    done = lab.ok("apply", "-f", "models.yaml", "--yes", "--no-wait")
    assert "not waited for" in done.err
    pid = lab.pid("slow")
    assert alive(pid)
    plan = lab.run("plan", "--detailed-exitcode")
    assert plan.code == 2
    assert "not yet proven" in plan.out
    lab.apply()
    assert lab.pid("slow") == pid
    assert lab.idle()
