// Package conform looks at a device plugin (deviceplugin v1beta1) as a kubelet or
// berth meets it, and says what it does otherwise than they expect: by letting it
// live beside a berthd of its own, and by asking it everything directly.
//
// Words:
//
//   - probe: one run against the socket of one plugin.
//   - life: what a plugin goes through beside a berthd: registration, pods, restarts
//     of berthd and of itself. Its checks are stages.
//   - check: one expectation, with what came of it: passed, warned (it works, not
//     everywhere or not always), failed, or skipped because the plugin does not
//     announce it or an earlier check failed.
//
// Invariants: the checks always come in the same order, and all of them; a plugin is
// asked only for what it announces; a call that is not answered ends with a
// deadline of its own.
//
// Allocate is called for real: the API has no way to only try it. Nothing is
// written outside of the life's own folder but what the plugin itself does then. A
// plugin has one list read at a time: the probe comes when berthd has ended.
package conform
