// Package plugintest tests a device plugin (deviceplugin v1beta1) against the expectations of a
// kubelet and of berth. It runs the plugin with a temporary berthd, and then calls the plugin
// directly.
//
// Words:
//
//   - probe: one run of direct calls to the socket of one plugin.
//   - life: the plugin's time with a berthd: registration, pods, restarts of berthd and
//     of the plugin. Its checks are stages.
//   - check: one expectation, with its result: passed, warned (it works, but not
//     everywhere or not always), failed, or skipped because the plugin does not
//     announce the feature or an earlier check failed.
//
// Invariants: a report always has all checks in the same order. Only announced methods of a
// plugin are called. Every call has a deadline.
//
// Allocate really allocates, because the API has no trial. Outside of the life's own directory
// nothing is written, except by the plugin itself. A plugin's list has one reader at a time, so
// the probe starts after berthd has ended.
package plugintest
