{{/* Where the kubelet of the distribution has its configuration, and its directory. */}}
{{- define "berth.kubelet" }}
{{- $file := dict "eks" "/etc/kubernetes/kubelet/config.json" "gke" "/home/kubernetes/kubelet-config.yaml" "kubeadm" "/var/lib/kubelet/config.yaml"
  "openshift" "/etc/kubernetes/kubelet.conf" "talos" "/etc/kubernetes/kubelet.yaml" }}
{{- $of := .Values.distribution }}
root: {{ eq $of "microk8s" | ternary "/var/snap/microk8s/common/var/lib/kubelet" "/var/lib/kubelet" }}
{{- if has $of (list "k3s" "rke2") }}
config: /var/lib/rancher/{{ $of }}/agent/etc/kubelet.conf.d
onlyDropIns: true
mount: /var/lib/kubelet/conf.d
{{- else if ne $of "microk8s" }}
config: {{ get $file $of }}
mount: /var/lib/kubelet/config.yaml
{{- if eq $of "eks" }}
dropIns: /etc/kubernetes/kubelet/config.json.d
{{- end }}
{{- end }}
{{- end }}

{{/* The ConfigMap has the name that kustomize gives it: another content has another name, so a change of it updates the DaemonSet. */}}
{{- define "berth.configurationName" }}
{{- $data := dict "berthd.yaml" (include "berth.configuration" .) }}
{{- $sum := dict "data" $data "kind" "ConfigMap" "name" "" | toJson | sha256sum | trunc 10 }}
{{- printf "berthd-%s" ($sum | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t") }}
{{- end }}

{{/* Refuses values that exclude each other. */}}
{{- define "berth.check" }}
{{- $v := .Values }}
{{- if $v.observe }}
  {{- range $name, $value := omit $v "observe" "image" "configuration" "distribution" }}
    {{- if $value }}{{ fail (printf "observe and %s exclude each other: with observe, the kubelet decides and berthd only reads" $name) }}{{ end }}
  {{- end }}
  {{- if ne $v.distribution "kubeadm" }}
    {{- fail (printf "observe and distribution=%s exclude each other: only a kubelet with the directory /var/lib/kubelet can be observed" $v.distribution) }}
  {{- end }}
{{- end }}
{{- if and $v.dra $v.draAllocatable }}
  {{- fail "dra and draAllocatable exclude each other: claims have CPUs of their own, or those of pods; set one of them" }}
{{- end }}
{{- if eq $v.distribution "microk8s" }}
  {{- range $name := list "dra" "draAllocatable" }}
    {{- if get $v $name }}
      {{- fail (printf "%s and distribution=microk8s exclude each other: the kubelet of MicroK8s has its plugins in another directory" $name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if and $v.kubeletCertificate (has $v.distribution (list "k3s" "microk8s" "rke2")) }}
  {{- fail (printf "kubeletCertificate and distribution=%s exclude each other: its kubelets do not make their certificate themselves" $v.distribution) }}
{{- end }}
{{- if $v.configuration }}
  {{- range $name, $field := dict "singleNumaNode" "topology.policy" "wholeCores" "cpu.options" }}
    {{- if get $v $name }}
      {{- fail (printf "%s and configuration exclude each other: set %s in the text of configuration" $name $field) }}
    {{- end }}
  {{- end }}
  {{- if and $v.monitoring (ne (get (fromYaml $v.configuration) "http" | toString) "unix:///run/berth/http.sock") }}
    {{- fail "monitoring and configuration exclude each other, unless the text of configuration has http: unix:///run/berth/http.sock" }}
  {{- end }}
{{- end }}
{{- end }}
