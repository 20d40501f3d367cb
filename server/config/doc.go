// Package config builds berthd's one configuration value.
//
// Words:
//
//   - source: where settings come from: the defaults, a KubeletConfiguration
//     file, a BerthConfiguration file, flags. Later ones win, field by field.
//   - note: something a source says that berth does not act on.
//
// Invariants: what Load returns has been validated as a whole and every path in
// it is absolute; the same sources give the same value; Dump prints a file that
// loads as the same value.
package config
