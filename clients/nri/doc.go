// Command nri is installed as berth-nri. It makes berthd the placement policy of a Kubernetes
// node. It is a plugin of the container runtime and needs a kubelet whose own managers are off.
// See docs/nri.md. Package policy describes the effect of each event.
//
// The runtime keeps one connection to a plugin. berth-nri reconnects when the connection is lost.
// If the runtime has started berth-nri itself, berth-nri exits instead, as such plugins do.
package main
