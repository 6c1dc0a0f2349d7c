# SPDX-License-Identifier: Apache-2.0
"""Shows the whole service from Python's grpcio, as a client in another language would use it: every method, bytes that
come back from every tier, and a training loop that equals one in memory bit for bit."""

import random

import grpc
import numpy
import pytest
from google.protobuf import descriptor_pb2
from grpc_fixtures import (BLOCK, BUILD, DEVICE, HOST, LIMIT_SECONDS, MIB, Session, daemon, session,  # noqa: F401
                           status_pb2, v1, wait_until)

SEED = 20261121


def test_the_descriptor_set_describes_both_services():
    described = descriptor_pb2.FileDescriptorSet.FromString((BUILD / "proto/terrace.v1.binpb").read_bytes())
    services = {f"{file.package}.{service.name}" for file in described.file for service in file.service}
    assert services == {"terrace.v1.Terrace", "terrace.v1.Admin"}
    names = {file.name for file in described.file}
    assert all(imported in names for file in described.file for imported in file.dependency)


def test_sessions_state_what_they_need(daemon):  # noqa: F811
    with daemon.connect() as channel:
        stated = Session(channel, label="rank 0", guarantees=[v1.Guarantee(place=HOST, bytes=4 * MIB),
                                                              v1.Guarantee(place=DEVICE, bytes=2 * MIB)])
        offers = {place.place.kind: place for place in stated.opened.places}
        assert offers[HOST.kind].guarantee_bytes >= 4 * MIB and offers[HOST.kind].range_bytes >= 16 * MIB
        assert offers[DEVICE.kind].guarantee_bytes >= 2 * MIB and offers[DEVICE.kind].range_bytes >= 8 * MIB
        assert len(stated.token) == 16
        shared = Session(channel, local_world_size=8)
        assert shared.token != stated.token and shared.opened.session != stated.opened.session
        assert [one.label for one in daemon.sessions()] == ["rank 0", ""]
        stated.call("CloseSession")
        assert [one.session for one in daemon.sessions()] == [shared.opened.session]


def test_shares_are_tensors_of_several_sessions(daemon):  # noqa: F811
    def share(use, name="common"):
        return v1.Share(name=name, use=use)

    with daemon.connect() as channel:
        writer = Session(channel, label="rank 0", share=share(v1.Share.USE_CREATE),
                         guarantees=[v1.Guarantee(place=HOST, bytes=4 * MIB)])
        reader = Session(channel, label="rank 1", share=share(v1.Share.USE_READ))
        content = random.Random(SEED).randbytes(3 * MIB // 2)
        tensor = writer.create("layer", len(content))
        writer.write(tensor, content)
        assert [one.spec.name for one in reader.call("ListTensors").tensors] == ["layer"]
        assert reader.read(tensor) == content
        for refused, code in ((lambda: reader.write(tensor, content), "PERMISSION_DENIED"),
                              (lambda: reader.create("another", MIB), "PERMISSION_DENIED"),
                              (lambda: Session(channel, share=share(v1.Share.USE_CREATE)), "ALREADY_EXISTS"),
                              (lambda: Session(channel, share=share(v1.Share.USE_READ, "other")), "NOT_FOUND"),
                              (lambda: Session(channel, share=share(v1.Share.USE_UNSPECIFIED)), "INVALID_ARGUMENT")):
            with pytest.raises(grpc.RpcError) as raised:
                refused()
            assert raised.value.code().name == code, raised.value.details()
        [listed] = daemon.sessions()
        assert listed.label == "common" and [one.label for one in listed.members] == ["rank 0", "rank 1"]
        assert [one.writes for one in listed.members] == [True, False]
        writer.call("CloseSession")
        assert reader.read(tensor) == content
        reader.call("CloseSession")
        assert not daemon.sessions()


def test_thousands_of_tensors_in_one_call(session):  # noqa: F811
    specs = [v1.TensorSpec(name=f"layer.{index:04}", dtype=v1.DATA_TYPE_FLOAT32, shape=[3, index % 1000 + 1])
             for index in range(4000)]
    handles = session.call("CreateTensors", tensors=specs).tensors
    assert len(set(handles)) == 4000
    listed = {tensor.spec.name: tensor for tensor in session.call("ListTensors").tensors}
    assert len(listed) == 4000
    one = listed["layer.0123"]
    assert (one.tensor, list(one.spec.shape), one.spec.bytes) == (handles[123], [3, 124], 1488)
    assert one.spec.dtype == v1.DATA_TYPE_FLOAT32 and one.placement.place.kind == status_pb2.PLACE_KIND_NOWHERE
    assert len(session.call("ListTensors", prefix="layer.39").tensors) == 100
    session.call("DeleteTensors", tensors=handles[:3999])
    assert [tensor.spec.name for tensor in session.call("ListTensors").tensors] == ["layer.3999"]


def test_long_lists_come_in_pages(session):  # noqa: F811
    names = {f"{'long name ' * 15}{index:05}" for index in range(9000)}
    specs = [v1.TensorSpec(name=name, dtype=v1.DATA_TYPE_UINT8, shape=[1]) for name in names]
    for begin in range(0, len(specs), 3000):
        session.call("CreateTensors", tensors=specs[begin:begin + 3000])
    listed, pages, token = [], 0, 0
    while pages == 0 or token != 0:
        page = session.call("ListTensors", page_token=token)
        listed += [tensor.spec.name for tensor in page.tensors]
        token = page.next_page_token
        pages += 1
    assert pages > 2
    assert len(listed) == len(names) and set(listed) == names


def test_bytes_survive_trips_through_every_tier(session, daemon):  # noqa: F811
    data = random.Random(SEED).randbytes(3 * MIB + 17)
    tensor = session.create("trips", len(data))
    assert session.write(tensor, data) == len(data)
    for method, place in (("SwapIn", DEVICE), ("SwapOut", BLOCK), ("SwapIn", HOST), ("SwapIn", DEVICE),
                          ("SwapOut", HOST), ("SwapOut", BLOCK), ("SwapIn", DEVICE), ("SwapOut", BLOCK)):
        placed = session.call(method, place=place, tensors=[tensor]).tensors[0]
        assert placed.place == place and placed.bytes == len(data)
        if method == "SwapOut" and place == BLOCK:
            assert session.read(tensor) == data
    session.call("Acquire", place=DEVICE, mode=v1.LEASE_MODE_WRITE, tensors=[tensor])  # dirty there from now on
    session.call("Release", mode=v1.LEASE_MODE_WRITE, tensors=[tensor])
    session.call("SwapOut", place=HOST, tensors=[tensor])
    session.call("SwapOut", place=BLOCK, tensors=[tensor])
    assert session.read(tensor) == data
    metrics = daemon.metrics()
    for link in ("host_to_device:0", "device_to_host:0", "block_read", "block_write"):
        assert metrics[f'terrace_transfer_bytes_total{{link="{link}"}}'] >= len(data), link


def test_a_set_has_a_mode_for_each_tensor(session):  # noqa: F811
    read, overwritten = (session.create(name, MIB) for name in ("read", "overwritten"))
    for tensor in (read, overwritten):
        session.write(tensor, b"x" * MIB)
    modes = [v1.LEASE_MODE_READ, v1.LEASE_MODE_OVERWRITE]
    session.call("Acquire", place=HOST, modes=modes, tensors=[read, overwritten])
    held = {one.spec.name: (one.readers, one.writers) for one in session.call("ListTensors").tensors}
    assert held == {"read": (1, 0), "overwritten": (0, 1)}
    session.call("Release", modes=modes, tensors=[read, overwritten])
    assert {one.readers + one.writers for one in session.call("ListTensors").tensors} == {0}


def test_parts_are_read_and_written(session):  # noqa: F811
    data = bytearray(random.Random(SEED).randbytes(2 * MIB))
    tensor = session.create("parts", len(data))
    session.write(tensor, bytes(data))
    session.call("SwapOut", place=BLOCK, tensors=[tensor])
    assert session.read(tensor, 1_000_001, 99) == data[1_000_001:1_000_100]
    assert session.write(tensor, b"here", offset=777_777) == 4
    data[777_777:777_781] = b"here"
    session.call("SwapOut", place=BLOCK, tensors=[tensor])
    assert session.read(tensor) == data
    assert session.read(tensor, 777_776) == data[777_776:]


def test_more_than_the_upper_tiers_hold(session):  # noqa: F811
    generator = random.Random(SEED)
    contents = {}
    for index in range(40):  # 40 MiB of tensors behind 24 MiB of upper tiers
        data = generator.randbytes(MIB + index)
        tensor = session.create(f"many.{index}", len(data))
        session.write(tensor, data)
        contents[tensor] = data
    order = list(contents)
    generator.shuffle(order)
    for tensor in order:
        assert session.read(tensor) == contents[tensor]


def test_leases_hold_tensors_in_place(session, daemon):  # noqa: F811
    tensors = [session.create(f"set.{index}", MIB) for index in range(3)]
    for tensor in tensors:
        session.write(tensor, bytes([tensor & 255]) * MIB)
    placed = session.call("Acquire", place=DEVICE, mode=v1.LEASE_MODE_READ, tensors=tensors).tensors
    assert [one.place for one in placed] == [DEVICE] * 3
    offsets = sorted(one.offset_bytes for one in placed)
    assert all(later - earlier >= MIB for earlier, later in zip(offsets, offsets[1:]))
    assert daemon.sessions()[0].leases == 3 and daemon.sessions()[0].leased_bytes == 3 * MIB
    assert {tensor.readers for tensor in session.call("ListTensors").tensors} == {1}
    session.call("Release", mode=v1.LEASE_MODE_READ, tensors=tensors)
    assert daemon.sessions()[0].leases == 0


def test_pins_and_hints(session):  # noqa: F811
    pinned, other = session.create("pinned", MIB), session.create("other", MIB)
    for tensor in (pinned, other):
        session.write(tensor, b"x" * MIB)
    assert session.call("Pin", place=DEVICE, tensors=[pinned]).tensors[0].place == DEVICE
    session.call("Evict", tensors=[other])
    session.call("Prefetch", place=DEVICE, tensors=[other])

    def listed(name):
        return session.call("ListTensors", prefix=name).tensors[0]
    wait_until(lambda: listed("other").placement.place == DEVICE, "the prefetch")
    assert listed("pinned").pinned and listed("pinned").placement.place == DEVICE
    session.call("Unpin", tensors=[pinned])
    assert not listed("pinned").pinned
    session.call("MarkStep", kind=v1.STEP_KIND_TRAIN)
    session.call("MarkStep", kind=v1.STEP_KIND_EVAL)
    assert session.stub.GetStatus(v1.GetStatusRequest()).status.sessions[0].step == 2


def test_watch_tells_headroom_then_pressure(session):  # noqa: F811
    events = session.stub.Watch(v1.WatchRequest(token=session.token), timeout=LIMIT_SECONDS)
    first = next(events)
    assert not first.HasField("pressure")
    assert {one.place.kind: one.free_bytes for one in first.headroom} == {
        DEVICE.kind: 8 * MIB, HOST.kind: 16 * MIB, BLOCK.kind: 64 * MIB}
    session.call("CreateTensors", tensors=[v1.TensorSpec(name=f"fill.{index}", bytes=MIB) for index in range(60)])
    event = next(events)
    assert (event.pressure.tier, event.pressure.above_high_mark) == ("block", True)
    assert event.pressure.used_bytes >= 0.9 * event.pressure.capacity_bytes
    assert min(one.free_bytes for one in event.headroom) <= 6.4 * MIB
    events.cancel()


def test_status_is_the_callers_tenants(session, daemon):  # noqa: F811
    session.create("one", MIB)
    status = session.stub.GetStatus(v1.GetStatusRequest()).status
    assert [tier.name for tier in status.tiers] == ["device:0", "memory", "block"]
    assert [tier.capacity_bytes for tier in status.tiers] == [8 * MIB, 16 * MIB, 64 * MIB]
    assert status.tiers[2].used_bytes == MIB
    assert [(one.tenant, one.label, one.tensors) for one in status.sessions] == [("default", "test", 1)]
    with daemon.connect(daemon.other_grpc) as channel:
        other = Session(channel, label="elsewhere")
        assert [one.label for one in other.stub.GetStatus(v1.GetStatusRequest()).status.sessions] == ["elsewhere"]
    assert sorted(one.tenant for one in daemon.sessions()) == ["default", "other"]


class InMemory:
    """Parameters and moments where numpy has them."""

    def __init__(self, _session):
        self.arrays = {}

    def load(self, name):
        return self.arrays[name].copy()

    def store(self, name, array):
        self.arrays[name] = array.copy()


class InTerrace:
    """Parameters and moments in tensors of the session."""

    def __init__(self, session):  # noqa: F811
        self.session, self.tensors = session, {}

    def load(self, name):
        tensor, shape = self.tensors[name]
        return numpy.frombuffer(self.session.read(tensor), numpy.float32).reshape(shape).copy()

    def store(self, name, array):
        if name not in self.tensors:
            handle = self.session.create(name, 0, dtype=v1.DATA_TYPE_FLOAT32, shape=array.shape)
            self.tensors[name] = handle, array.shape
        self.session.write(self.tensors[name][0], array.tobytes())


def train(store, steps: int) -> list[float]:
    """Linear regression with Adam: 1 Mi weights in four blocks, so that weights and moments come to 12 MiB."""
    random_numbers = numpy.random.default_rng(SEED)
    blocks, width, batch = 4, 1 << 18, 4
    truth = [random_numbers.standard_normal(width, numpy.float32) for _ in range(blocks)]
    for block in range(blocks):
        for kind in ("weight", "mean", "square"):
            store.store(f"{kind}.{block}", numpy.zeros(width, numpy.float32))
    losses = []
    for step in range(1, steps + 1):
        inputs = [random_numbers.standard_normal((batch, width), numpy.float32) for _ in range(blocks)]
        target = sum(x @ w for x, w in zip(inputs, truth))
        error = sum(x @ store.load(f"weight.{block}") for block, x in enumerate(inputs)) - target
        losses.append(float((error * error).mean()))
        for block, x in enumerate(inputs):
            gradient = 2 / batch * (error @ x)
            mean = numpy.float32(0.9) * store.load(f"mean.{block}") + numpy.float32(0.1) * gradient
            square = numpy.float32(0.999) * store.load(f"square.{block}") + numpy.float32(0.001) * gradient * gradient
            rate = numpy.float32(0.01 * (1 - 0.999**step)**0.5 / (1 - 0.9**step))
            weight = store.load(f"weight.{block}") - rate * mean / (numpy.sqrt(square) + numpy.float32(1e-8))
            for kind, array in (("weight", weight), ("mean", mean), ("square", square)):
                store.store(f"{kind}.{block}", array)
    return losses


def test_training_equals_memory_bit_for_bit(daemon):  # noqa: F811
    with daemon.connect() as channel:
        opened = Session(channel, guarantees=[v1.Guarantee(place=HOST, bytes=2 * MIB),
                                              v1.Guarantee(place=DEVICE, bytes=0)])
        ballast = [opened.create(f"ballast.{index}", 4 * MIB) for index in range(3)]
        for tensor in ballast:
            opened.write(tensor, b"b" * 4 * MIB)
        assert train(InTerrace(opened), 6) == train(InMemory(None), 6)
        metrics = daemon.metrics()
    assert metrics['terrace_transfer_bytes_total{link="block_write"}'] > 0
    assert metrics['terrace_checksum_failures_total{tier="block"}'] == 0
