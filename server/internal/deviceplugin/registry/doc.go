// Package registry finds device plugins that do not register themselves. Such a plugin creates
// a socket in a directory, and the watcher of the directory calls it (pluginregistration v1,
// the kubelet's plugin watcher).
//
// Words:
//
//   - directory: the place of these sockets, which may also be in its subdirectories, by
//     default /var/lib/kubelet/plugins_registry.
//   - registration socket: a plugin's socket there. Its service returns the plugin's type, its
//     resource, and the socket of its device service, which may be the same one.
//   - visit: one connection to a registration socket, with the call for its data and the
//     notification of the result. A successful visit lasts until the plugin's list ends.
//   - pause: the time between two visits of a socket; it doubles.
//
// Invariants: only sockets count, and names that begin with a dot do not. A socket has one
// visit at a time, however many events it causes. A new file with the same name is a new
// socket. A plugin whose socket disappears is detached. A plugin that loses its list while its
// socket stays is visited again. A plugin is notified of a refusal only after a decision,
// never because berthd ends or because another program serves its type.
//
// If the kernel has no inotify instances, watches or descriptors left, the directory is polled
// instead, and watched again as soon as possible. The same sockets are found, up to Config.Poll
// later.
//
// The package removes nothing in the directory, because the files there belong to the plugins.
package registry
