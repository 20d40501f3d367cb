// Command nri is installed as berth-nri. It makes berthd the placement policy
// of a Kubernetes node: a plugin of the container runtime, beside a kubelet whose
// own managers are off. See docs/nri.md, and package policy for what it does with
// which event.
//
// The runtime keeps one connection to a plugin. berth-nri connects again whenever
// it is lost, unless the runtime itself has started it: then it ends, as such
// plugins do.
package main
