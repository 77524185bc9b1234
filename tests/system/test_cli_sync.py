"""The command on a replica with a centre: sync, state, conflicts, files, removal, and what goes wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.directory import folder_name
from tests.system.command import Command

ZH = "项目代号叫夜莺，下周五交付第一版"
NOWHERE = "postgresql://someone:s3cret-word@127.0.0.1:9/none"
Device = Callable[[str], Command]


@pytest.fixture
def device(tmp_path: Path, database_url: str) -> Device:
    return lambda name: Command(f"edge://{tmp_path / name}", environment={"MEMORY_CENTRE_URL": database_url})


def contents(command: Command) -> set[str]:
    return {item["content"] for item in command.json("list", "--user", "u")["memories"]}


def sync(command: Command) -> dict[str, Any]:
    [report] = command.json("edge", "sync", "--user", "u")["reports"]
    assert report["equal"]
    found: dict[str, Any] = report
    return found


def test_what_one_device_was_told_another_recalls_after_init(device: Device) -> None:
    a, b = device("a"), device("b")
    a("add", ZH, "--user", "u", "--tag", "项目")
    assert "never synced" in a("edge", "status").out
    assert sync(a)["pushed"] == 1
    [report] = b.json("edge", "init", "--user", "u")["reports"]
    assert (report["pulled"], report["equal"]) == (1, True)
    assert ZH in b("recall", "夜莺", "--user", "u").out
    [status] = b.json("edge", "status")["users"]
    assert (status["condition"], status["equal"], status["conflicts"]) == ("in sync", True, 0)
    assert status["pending_accesses"] == 1
    assert "in sync" in b("edge", "status").out


def test_edits_meet_and_a_lost_text_can_be_put_back_or_dismissed(device: Device) -> None:
    a, b = device("a"), device("b")
    made = a.json("add", "first", "--user", "u")["memory_id"]
    sync(a)
    b("edge", "init", "--user", "u")
    a("update", made, "--user", "u", "--content", "what a says")
    b("update", made, "--user", "u", "--content", "what b says", "--importance", "1")
    sync(b)
    assert sync(a)["conflicts"] == 1
    assert contents(a) == {"what b says"}
    [entry] = a.json("edge", "conflicts", "list", "--user", "u")["conflicts"]
    assert (entry["content"], entry["reason"]) == ("what a says", "overwritten")
    assert "what a says" in a("edge", "conflicts", "--user", "u").out
    a("edge", "conflicts", "restore", str(entry["number"]), "--user", "u")
    sync(a)
    sync(b)
    assert contents(b) == {"what a says"}
    assert "Nothing" in a("edge", "conflicts", "list", "--user", "u").out
    a("edge", "conflicts", "dismiss", "99", "--user", "u", code=3)


def test_a_centre_out_of_reach_is_named_without_its_password_and_the_replica_works_on(
    device: Device, tmp_path: Path
) -> None:
    lonely = Command(f"edge://{tmp_path / 'lonely'}", environment={"MEMORY_CONNECT_TIMEOUT": "3"})
    lonely("add", ZH, "--user", "u")
    error = lonely.error("edge", "sync", "--centre", NOWHERE, code=5)
    assert error["hint"]
    assert "s3cret-word" not in str(error)
    [status] = lonely.json("edge", "status")["users"]
    assert (status["condition"], status["pending"]) == ("centre not reached", 1)
    assert ZH in lonely("recall", "夜莺", "--user", "u").out
    assert "no centre" in lonely.error("edge", "sync", code=2)["message"]


def test_other_stores_have_nothing_to_sync(database_url: str) -> None:
    assert "replica" in Command(database_url).error("edge", "status", code=2)["message"]


def test_looking_at_a_replica_that_is_not_there_makes_none(device: Device, tmp_path: Path) -> None:
    for arguments in (["status"], ["sync"], ["wipe", "--user", "u", "--yes"], ["conflicts", "--user", "u"]):
        assert "no replica" in device("nowhere").error("edge", *arguments, code=3)["message"]
    assert not (tmp_path / "nowhere").exists()


def test_options_that_would_be_ignored_are_refused(device: Device) -> None:
    a = device("a")
    a("add", ZH, "--user", "u")
    for more in (["--watch", "--user", "u"], ["--watch", "--verify"], ["--request", "f", "--user", "u", "--verify"]):
        a.error("edge", "sync", *more, code=2)


def test_watching_tells_of_each_change_until_it_is_interrupted(device: Device) -> None:
    a = device("a")
    a("add", ZH, "--user", "u")
    watching = a.open("--json", "edge", "sync", "--watch")
    assert watching.stdout is not None
    conditions = []
    while "in sync" not in conditions:
        conditions.append(json.loads(watching.stdout.readline())["condition"])
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert device("b").json("edge", "init", "--user", "u")["reports"][0]["pulled"] == 1


def test_a_user_is_removed_from_one_device_only_and_only_when_it_is_meant(device: Device, tmp_path: Path) -> None:
    a = device("a")
    a("add", ZH, "--user", "u")
    refused = a.error("edge", "wipe", "--user", "u", code=8)
    assert (refused["unsent"], "--yes" in refused["hint"]) == (1, True)
    assert a.json("edge", "wipe", "--user", "u", "--yes")["unsent"] == 0, "it was sent first"
    assert not (tmp_path / "a" / "users" / folder_name("u")).exists()
    assert device("b").json("edge", "init", "--user", "u")["reports"][0]["pulled"] == 1


def test_everything_is_compared_on_demand(device: Device) -> None:
    a = device("a")
    a("add", ZH, "--user", "u")
    sync(a)
    [report] = a.json("edge", "reconcile", "--user", "u")["reports"]
    assert (report["reconciled"], report["equal"], report["pulled"]) == (True, True, 0)
    assert "compared" in a("edge", "reconcile", "--user", "u").out


def test_a_device_without_a_network_syncs_by_files(device: Device, tmp_path: Path, database_url: str) -> None:
    other = device("other")
    other("add", "written elsewhere", "--user", "u")
    sync(other)
    lonely = Command(f"edge://{tmp_path / 'lonely'}")
    lonely("add", ZH, "--user", "u")
    request, reply = str(tmp_path / "request.jsonl"), str(tmp_path / "reply.jsonl.zst")
    assert lonely.json("edge", "sync", "--user", "u", "--request", request)["changes"] == 1
    assert Command(database_url).json("edge", "answer", request, reply)["changes"] == 1
    for _ in range(2):
        [report] = lonely.json("edge", "sync", "--user", "u", "--answer", reply)["reports"]
        assert report["equal"]
    assert contents(lonely) == {ZH, "written elsewhere"}
    sync(other)
    assert contents(other) == contents(lonely)
    whole = Path(request).read_bytes()
    Path(request).write_bytes(whole[:-20])
    Command(database_url).error("edge", "answer", request, reply, code=7)
    lonely("add", "of another", "--user", "v")
    assert "another user" in lonely.error("edge", "sync", "--user", "v", "--answer", reply, code=7)["message"]


def test_a_revoked_device_loses_what_it_has_of_the_user(device: Device, database_url: str, tmp_path: Path) -> None:
    a, centre = device("a"), Command(database_url)
    a("add", ZH, "--user", "u")
    a("add", "somebody else's", "--user", "v")
    sync(a)
    [known] = centre.json("devices", "list", "--user", "u")["devices"]
    assert known["device_id"] in centre("devices", "list", "--user", "u").out
    centre("devices", "revoke", "no-such-device", "--user", "u", code=3)
    assert centre.json("devices", "revoke", known["device_id"], "--user", "u")["revoked"]
    assert a.error("edge", "sync", "--user", "u", code=8)["type"] == "DeviceRevoked"
    assert not (tmp_path / "a" / "users" / folder_name("u")).exists()
    assert a.json("list", "--user", "v")["memories"]
