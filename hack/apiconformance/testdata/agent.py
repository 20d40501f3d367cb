"""Runs the containers of a pod as processes, each with the CPUs, memory and devices that berthd
gives it.

Usage: agent.py SOCKET POD.json COMMAND...
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from berth.admission.v1 import admission_pb2, admission_pb2_grpc
from berth.allocation.v1 import allocation_pb2, allocation_pb2_grpc
from berth.lifecycle.v1 import lifecycle_pb2, lifecycle_pb2_grpc
from berth.types.v1 import types_pb2

OWNER = "example"  # the name of this agent: it changes no pods of others
REPEAT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def again(call, request):
    """Makes a call, and repeats it while berthd is away: a repeated call changes nothing twice."""
    for pause in (0.1, 0.5, 2, 5):
        try:
            return call(request, timeout=30)
        except grpc.RpcError as error:
            if error.code() not in REPEAT:
                raise
        time.sleep(pause)
    return call(request, timeout=30)


def reason(error):
    """Returns the reason of an error, such as "POD_NOT_FOUND". It is empty if berthd has not answered."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return info.reason
    return ""


def run(lifecycle, allocation, uid, container, command):
    """Runs one container, and returns the exit code of its process."""
    made = again(allocation.Allocate, allocation_pb2.AllocateRequest(pod_uid=uid, container_name=container))
    print(f"{container}: CPUs {made.resources.cpuset_cpus.list}", flush=True)
    # The process stops itself, so that berthd can place it before its first instruction.
    process = subprocess.Popen(
        ["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command], env={**os.environ, **made.edits.envs})
    os.waitpid(process.pid, os.WUNTRACED)
    name = uuid.uuid4().hex  # the id of this start of the container
    again(lifecycle.PreStartContainer, lifecycle_pb2.PreStartContainerRequest(
        pod_uid=uid, container_name=container, container_id=name, pid=process.pid))
    os.kill(process.pid, signal.SIGCONT)
    code = process.wait()
    again(lifecycle.PostStopContainer, lifecycle_pb2.PostStopContainerRequest(container_id=name))
    return code


def main(socket, path, *command):
    channel = grpc.insecure_channel("unix:" + socket)
    admission = admission_pb2_grpc.AdmissionServiceStub(channel)
    allocation = allocation_pb2_grpc.AllocationServiceStub(channel)
    lifecycle = lifecycle_pb2_grpc.LifecycleServiceStub(channel)

    # No pod of this agent runs yet: berthd removes what an earlier run has left.
    known = again(allocation.GetRevision, allocation_pb2.GetRevisionRequest()).revision
    again(admission.SyncPods, admission_pb2.SyncPodsRequest(owner=OWNER, known_revision=known, allow_empty=True))

    with open(path, encoding="utf-8") as file:
        pod = json_format.ParseDict(json.load(file), types_pb2.Pod(), ignore_unknown_fields=True)
    request = admission_pb2.AdmitRequest(pod=pod, owner=OWNER, admission_id=uuid.uuid4().hex)
    answer = again(admission.Admit, request)
    while answer.verdict == admission_pb2.VERDICT_DEFERRED:
        print(f"waiting: {answer.message}", flush=True)
        time.sleep(answer.retry_after.ToMilliseconds() / 1000)
        answer = again(admission.Admit, request)
    if answer.verdict != admission_pb2.VERDICT_ADMITTED:
        sys.exit(f"rejected: {answer.reason}: {answer.message}")

    uid = pod.metadata.uid
    try:
        return max([run(lifecycle, allocation, uid, c.name, command) for c in pod.spec.containers])
    finally:
        again(admission.RemovePod, admission_pb2.RemovePodRequest(pod_uid=uid, owner=OWNER))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except grpc.RpcError as failure:
        sys.exit(f"{failure.code().name} {reason(failure)}: {failure.details()}")
