"""Leads a pod through its life at a berthd, with messages that plain protoc has generated.

Arguments: the path of berthd's socket. The messages are in PYTHONPATH.
"""

import sys

import grpc
from berth.admission.v1 import admission_pb2 as admission
from berth.allocation.v1 import allocation_pb2 as allocation
from berth.lifecycle.v1 import lifecycle_pb2 as lifecycle
from berth.types.v1 import types_pb2 as types

channel = grpc.insecure_channel("unix:" + sys.argv[1])


def method(service, name, request, response, kind=channel.unary_unary):
    """Returns a call of an API method; protoc alone generates no stubs."""
    return kind(
        f"/berth.{service}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )


def admission_method(name, request, response):
    return method("admission.v1.AdmissionService", name, request, response)


def allocation_method(name, request, response, kind=channel.unary_unary):
    return method("allocation.v1.AllocationService", name, request, response, kind)


admit = admission_method("Admit", admission.AdmitRequest, admission.AdmitResponse)
resize = admission_method("Resize", admission.ResizeRequest, admission.ResizeResponse)
sync = admission_method("SyncPods", admission.SyncPodsRequest, admission.SyncPodsResponse)
remove = admission_method("RemovePod", admission.RemovePodRequest, admission.RemovePodResponse)
get = allocation_method("Get", allocation.GetRequest, allocation.GetResponse)
listing = allocation_method("List", allocation.ListRequest, allocation.ListResponse)
revision = allocation_method("GetRevision", allocation.GetRevisionRequest, allocation.GetRevisionResponse)
allocate = allocation_method("Allocate", allocation.AllocateRequest, allocation.AllocateResponse)
watch = allocation_method("Watch", allocation.WatchRequest, allocation.WatchResponse, channel.unary_stream)
start = method(
    "lifecycle.v1.LifecycleService", "PreStartContainer",
    lifecycle.PreStartContainerRequest, lifecycle.PreStartContainerResponse,
)
stop = method(
    "lifecycle.v1.LifecycleService", "PostStopContainer",
    lifecycle.PostStopContainerRequest, lifecycle.PostStopContainerResponse,
)

T = 30  # seconds that a call may take


def check(got, want, what):
    if got != want:
        sys.exit(f"{what}: got {got!r}, want {want!r}")


def pod(uid, cpu):
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return types.Pod(
        metadata=types.PodMetadata(name=uid, namespace="default", uid=uid),
        spec=types.PodSpec(containers=[
            types.Container(name="app", resources=types.ResourceRequirements(requests=amounts, limits=amounts)),
        ]),
    )


before = revision(allocation.GetRevisionRequest(), timeout=T).revision
stream = watch(allocation.WatchRequest(from_revision=before), timeout=T)

# A dry run, the admission, and the same again.
dry = admit(admission.AdmitRequest(pod=pod("u-1", "2"), dry_run=True), timeout=T)
check(dry.verdict, admission.VERDICT_ADMITTED, "verdict of the dry run")
check(len(listing(allocation.ListRequest(), timeout=T).pods), 0, "pods after the dry run")
request = admission.AdmitRequest(pod=pod("u-1", "2"), admission_id="life-1")
first, again = admit(request, timeout=T), admit(request, timeout=T)
check((first.verdict, first.replayed), (admission.VERDICT_ADMITTED, False), "the admission")
check((again.verdict, again.replayed), (admission.VERDICT_ADMITTED, True), "the repeated admission")

# What does not fit is an answer, and a wrong request an error with its reason.
rejected = admit(admission.AdmitRequest(pod=pod("u-2", "64")), timeout=T)
check(rejected.verdict, admission.VERDICT_REJECTED, "verdict of a pod that is too large")
try:
    get(allocation.GetRequest(pod_uid="u-2"), timeout=T)
    sys.exit("a pod that was rejected is found")
except grpc.RpcError as error:
    check(error.code(), grpc.StatusCode.NOT_FOUND, "code")
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    check(b"POD_NOT_FOUND" in details, True, "the reason in the details")

# Its container: allocated, started, stopped.
made = allocate(allocation.AllocateRequest(pod_uid="u-1", container_name="app"), timeout=T)
check(made.allocation.exclusive_cpus, True, "the container has CPUs of its own")
cpus = made.resources.cpuset_cpus.list
started = start(lifecycle.PreStartContainerRequest(pod_uid="u-1", container_name="app", container_id="c-1"), timeout=T)
check(started.cpuset_cpus.list, cpus, "CPUs at the start")
found = get(allocation.GetRequest(pod_uid="u-1"), timeout=T)
check(list(found.pod.containers[0].container_ids), ["c-1"], "the container's ids")
check(found.spec.spec.containers[0].resources.limits["cpu"], "2", "the specification")
more = admission.ContainerResources(
    container_name="app",
    resources=types.ResourceRequirements(
        requests={"cpu": "2", "memory": "2Gi"}, limits={"cpu": "2", "memory": "2Gi"}),
)
sized = resize(admission.ResizeRequest(pod_uid="u-1", containers=[more]), timeout=T)
check(sized.verdict, admission.VERDICT_ADMITTED, "verdict of the resize")
stop(lifecycle.PostStopContainerRequest(container_id="c-1"), timeout=T)

# The list of living pods, the removal, and what a reader saw of all that.
now = revision(allocation.GetRevisionRequest(), timeout=T).revision
synced = sync(admission.SyncPodsRequest(active_pod_uids=["u-1"], known_revision=now), timeout=T)
check(list(synced.removed_pod_uids), [], "pods that SyncPods has removed")
remove(admission.RemovePodRequest(pod_uid="u-1"), timeout=T)
check(len(listing(allocation.ListRequest(), timeout=T).pods), 0, "pods after the removal")
seen = []
for message in stream:
    seen += [event.WhichOneof("event") for event in message.events]
    if "removed" in seen:
        break
stream.cancel()
for kind in ("added", "bound", "changed", "unbound", "removed"):
    check(kind in seen, True, f"Watch shows {kind} among {seen}")
print("the pod has lived")
