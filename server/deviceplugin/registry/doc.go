// Package registry finds device plugins that do not call: they put a socket into
// a directory, and whoever watches the directory calls them (pluginregistration
// v1, the kubelet's plugin watcher).
//
// Words:
//
//   - directory: where the sockets appear, also in folders below it, by default
//     /var/lib/kubelet/plugins_registry.
//   - registration socket: what a plugin puts there. It tells the plugin's type,
//     its resource, and where it serves devices: at the same socket or another.
//   - visit: one round of connecting to a registration socket, asking, and telling
//     the plugin what came of it. A visit that succeeded lasts until the plugin's
//     list ends.
//   - pause: the time between two visits of a socket; it doubles.
//
// Invariants: of what happens in the directory only sockets count that appear or
// go; names that begin with a dot do not; a socket has one visit at a time; the
// same file is not visited twice at once however often it is noticed, and a new
// file of the same name is another one; a plugin whose socket goes is detached; a
// plugin that loses its list while its socket stays is visited again; a plugin is
// told that it is not registered only when that was decided, never because berthd
// ends or because it is of a type that others serve.
//
// Where the kernel has no inotify instances, watches or descriptors left, the
// directory is read again and again instead, and watched when that is possible: the
// same sockets are found, up to Config.Poll later.
//
// Nothing in the directory is ever removed: unlike device-plugins it belongs to
// the plugins.
package registry
