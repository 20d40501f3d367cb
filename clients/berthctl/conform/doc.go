// Package conform looks at a device plugin (deviceplugin v1beta1) as a kubelet or
// berth meets it, and says what it does otherwise than they expect.
//
// Words:
//
//   - probe: one run against the socket of one plugin.
//   - check: one expectation, with what came of it: passed, warned (it works, not
//     everywhere or not always), failed, or skipped because the plugin does not
//     announce it or an earlier check failed.
//
// Invariants: the checks always come in the same order, and all of them; a plugin is
// asked only for what it announces; a call that is not answered ends with a
// deadline of its own.
//
// Allocate is called for real: the API has no way to only try it. Nothing is
// written but what the plugin itself does then.
package conform
