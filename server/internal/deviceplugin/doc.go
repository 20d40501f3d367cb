// Package deviceplugin is the server for device plugins (kubelet.sock, API deviceplugin
// v1beta1) and the client of their sockets. It accepts registrations, follows the plugins'
// lists, and makes the device manager's calls.
//
// Words:
//
//   - directory: the place of kubelet.sock and of the plugins' sockets, by default
//     /var/lib/kubelet/device-plugins.
//   - endpoint: a plugin's socket, a file name in the directory.
//   - session: one registration: a connection, its ListAndWatch stream, and the end of both.
//     A session is not opened again; the plugin registers again.
//   - standby: the connection of a registered plugin that a newer plugin has replaced. When
//     the newer plugin ends, the newest living standby gets a new session.
//   - answer: a plugin's response to Allocate for one container and resource.
//
// Invariants:
//
//   - The sockets in the directory are removed before kubelet.sock is created. Some plugins
//     detect a restart by the former and some by the latter.
//   - A plugin's options are requested before its registration is answered.
//   - A resource has one session, the newest. The stream of the previous session has ended
//     before the new one begins.
//   - Every call to a plugin has a deadline.
//   - Optional calls are made only to plugins whose options announce them, and never to a
//     standby.
//
// The package makes no decisions: managers/device chooses the devices of a container.
package deviceplugin
