// Package deviceplugin speaks with device plugins (kubelet.sock and the plugins'
// own sockets, API deviceplugin v1beta1): it lets them register, follows their
// lists, and carries the device manager's questions to them.
//
// Words:
//
//   - directory: where kubelet.sock is and plugins put their sockets, by default
//     /var/lib/kubelet/device-plugins.
//   - endpoint: a plugin's socket, a file name in the directory.
//   - session: what follows a registration: a connection, one ListAndWatch
//     stream on it, and its end. It is never opened again; the plugin registers
//     anew.
//   - standby: the connection of a plugin that has called, after a newer one has
//     taken its place. When the newer one goes, the newest standby that still lives
//     takes over, in a session of its own.
//   - answer: what a plugin said to Allocate for one container and resource.
//
// Invariants: the sockets in the directory are removed before kubelet.sock is
// made, since some plugins learn of a restart by the one and some by the other;
// a plugin is asked for its options before its registration is answered; a
// resource has one session, the newest, and the stream of the one before has
// ended before its own begins; every call to a plugin has a deadline; what a
// plugin did not announce in its options it is not asked for; a standby is asked
// nothing.
//
// The package decides nothing: which devices a container gets is for
// managers/device.
package deviceplugin
