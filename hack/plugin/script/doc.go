// Package script is a device plugin (deviceplugin v1beta1) that does what a test
// or a demonstration tells it to: its devices, its options, and how it behaves at
// each call can be set at any time. It is a library for tests; the command beside
// it is the same as a program.
//
// Words:
//
//   - call: something the plugin was asked, with what it answered; every call is
//     kept, and written as a line of JSON if there is a log.
//   - method: Register (the one call that goes the other way), Options,
//     ListAndWatch, Preferred, Allocate, PreStart; Info and Notify of a plugin
//     that waits to be found.
//   - manner: how the plugin behaves at a method, as in "hang" or "refuse".
//   - signal: what tells a plugin that its server was restarted: its own socket
//     is gone, or kubelet.sock is another file. Real plugins know one of them.
//
// A plugin that dies does not come back and leaves its socket behind, as a killed
// process does.
package script
