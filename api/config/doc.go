// Package config is berth's configuration as a document: its fields, their defaults, its format,
// and the conversion for each part of berth. It reads bytes, not files, and has no flags or
// sockets. Package server/internal/config merges berthd's sources. berthctl simulate uses this
// package to interpret a document exactly as berthd does.
//
// Words:
//
//   - layer: a document applied to a configuration. Its fields override.
//   - note: a setting of a layer that has no effect in berth.
//
// Invariants: equal layers give equal values. Dump prints a document that parses to the same
// value. If Validate accepts a configuration, a constructor refuses it only because of the
// machine.
package config
