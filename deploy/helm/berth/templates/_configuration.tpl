{{/* The text of berthd.yaml. */}}
{{- define "berth.configuration" }}
{{- if .Values.configuration }}
{{- .Values.configuration }}
{{- else if .Values.observe -}}
# Configuration of a berthd that observes: docs/configuration.md has all fields. What decides is the kubelet's.
apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
observe: {root: /host}
http: 127.0.0.1:10470 # in the network of the pod, where nobody else is: for kubectl port-forward
httpPage: true
kubeletMetrics: false # the kubelet's own metrics have these names
{{ else -}}
# Configuration of berthd on a Kubernetes node: docs/configuration.md has all fields. The reserved CPUs and
# memory are those of the kubelet's configuration file (--kubelet-config)
{{- if .Values.dra }}, which must have at least
#
#   reservedSystemCPUs: "0-7"
#   systemReserved: {memory: 18Gi}
#   reservedMemory and memoryManagerPolicy are not needed: berthd divides the memory itself.
#
# This is for a node with two NUMA nodes, of which node 0 has the CPUs 0-3 and node 1 the CPUs 4-7, beside others. CPU 0 stays
# with the system. A claim gets CPUs and memory of one NUMA node, so dra has both of a NUMA node, or nothing of it.
{{- else if .Values.draAllocatable }}, which must have at least
#
#   reservedSystemCPUs: "0"
#   systemReserved: {memory: 2Gi}
#   featureGates: {DRANodeAllocatableResources: true}
#   reservedMemory and memoryManagerPolicy are not needed: berthd divides the memory itself.
#
# This is for a node with two NUMA nodes.
{{- else }}.
{{- end }}
apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
{{- if .Values.monitoring }}
http: unix:///run/berth/http.sock # metrics; berth-nri serves them on the address of the node
{{- else }}
http: 127.0.0.1:10470 # health and metrics; the pod is in the network of the node
{{- end }}
kubeletMetrics: false # the kubelet's own metrics have these names
cpu:
  policy: static
{{- if .Values.wholeCores }}
  options: {full-pcpus-only: "true"}
{{- end }}
{{- if .Values.dra }}
memory:
  policy: Static
  reserved: # together what the kubelet reserves and what its evictionHard keeps (memory.available: 100Mi unless set)
  - {numaNode: 0, limits: {memory: 9316Mi}}
  - {numaNode: 1, limits: {memory: 9216Mi}}
{{- else if .Values.draAllocatable }}
memory:
  policy: Static
  reserved: # together what the kubelet reserves and what its evictionHard keeps (memory.available: 100Mi unless set)
  - {numaNode: 0, limits: {memory: 1124Mi}}
  - {numaNode: 1, limits: {memory: 1024Mi}}
{{- end }}
topology:
{{- if .Values.singleNumaNode }}
  policy: single-numa-node
  scope: pod
{{- else }}
  policy: best-effort
{{- end }}
{{- if .Values.dra }}
dra: # the part of the reserved CPUs and memory for claims
  cpus: 1-7
  memory:
  - {numaNode: 0, limits: {memory: 8Gi}}
  - {numaNode: 1, limits: {memory: 8Gi}}
{{- else if .Values.draAllocatable }}
dra:
  from: allocatable # claims get the CPUs, memory and huge pages that pods may have, too
{{- end }}
{{ end }}
{{- end }}
