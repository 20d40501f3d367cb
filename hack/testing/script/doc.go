// Package script is a scriptable device plugin (deviceplugin v1beta1). A test or a demonstration
// can set its devices, its options, and its behaviour at each call at any time. It is a library;
// the command beside it is the program.
//
// Words:
//
//   - call: a call to the plugin, with its response. Every call is recorded, and
//     written as a line of JSON if there is a log.
//   - method: Register (the only call by the plugin), Options, ListAndWatch,
//     Preferred, Allocate, PreStart; Info and Notify of a plugin that waits to be
//     found.
//   - manner: the plugin's behaviour at a method, as in "hang" or "refuse".
//   - signal: the plugin's way to detect a restart of its server: its own socket
//     was removed, or kubelet.sock is another file. Real plugins use one of them.
//
// A plugin that dies does not restart and leaves its socket behind, like a killed process.
package script
