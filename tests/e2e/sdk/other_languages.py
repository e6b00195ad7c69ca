"""Calls the daemon as a stranger would: grpcio over the Unix socket, messages found by reflection.

Prints what it saw as one JSON object; the test that starts this compares.
"""

import json
import sys

import grpc
from google.protobuf import any_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def connect(socket):
    # Without this, grpcio sends the socket's path as the authority, which HTTP/2 servers refuse.
    return grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")])


class Service:
    """A service known by reflection alone."""

    def __init__(self, channel, name):
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self.channel, self.service = channel, pool.FindServiceByName(name)

    def call(self, method, **fields):
        method = self.service.methods_by_name[method]
        request = json_format.ParseDict(fields, message_factory.GetMessageClass(method.input_type)())
        answer = self.channel.unary_unary(
            f"/{self.service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        return answer(request, timeout=30)


def error_info():
    """google.rpc.ErrorInfo and Status, as little of them as is read here."""
    file = FileDescriptorProto(name="status.proto", package="google.rpc", syntax="proto3")
    file.dependency.append("google/protobuf/any.proto")
    text, message, repeated = (
        FieldDescriptorProto.TYPE_STRING,
        FieldDescriptorProto.TYPE_MESSAGE,
        FieldDescriptorProto.LABEL_REPEATED,
    )
    entry = DescriptorProto(name="MetadataEntry")
    entry.field.add(name="key", number=1, type=text, label=1)
    entry.field.add(name="value", number=2, type=text, label=1)
    entry.options.map_entry = True
    info = file.message_type.add(name="ErrorInfo")
    info.nested_type.append(entry)
    info.field.add(name="reason", number=1, type=text, label=1)
    info.field.add(name="domain", number=2, type=text, label=1)
    kind = ".google.rpc.ErrorInfo.MetadataEntry"
    info.field.add(name="metadata", number=3, type=message, type_name=kind, label=repeated)
    status = file.message_type.add(name="Status")
    status.field.add(name="details", number=3, type=message, type_name=".google.protobuf.Any", label=repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{name}")) for name in ("Status", "ErrorInfo")]


def refusal(call):
    try:
        call()
    except grpc.RpcError as error:
        status_class, info_class = error_info()
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        for detail in status_class.FromString(details).details:
            if detail.type_url.endswith("google.rpc.ErrorInfo"):
                info = info_class.FromString(detail.value)
                return {"code": error.code().name, "reason": info.reason, "facts": dict(info.metadata)}
        return {"code": error.code().name}
    return None


def main(sockets):
    with connect(f"{sockets}/admin.sock") as channel, connect(f"{sockets}/vramd.sock") as memory_channel:
        admin = Service(channel, "vramd.v1.AdminService")
        memory = Service(memory_channel, "vramd.v1.MemoryService")
        health = health_pb2_grpc.HealthStub(memory_channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        quota = admin.call("SetQuota", tenant="team-a", device="0", limit="24MiB").quota
        seen = {
            "health": health_pb2.HealthCheckResponse.ServingStatus.Name(health.status),
            "services": list(ProtoReflectionDescriptorDatabase(channel).get_services()),
            "driver": admin.call("GetNode").driver,
            "limit_bytes": str(quota.limit_bytes),
            "refused": refusal(lambda: admin.call("SetQuota", tenant="team-a", limit="24gib")),
            "memory": refusal(lambda: memory.call("ListAllocations")),
        }
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
