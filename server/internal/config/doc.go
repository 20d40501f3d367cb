// Package config builds berthd's one configuration value from its sources. What
// the value is, and how its documents read, is in api/config.
//
// Words:
//
//   - source: where settings come from: the defaults, a KubeletConfiguration
//     file, a BerthConfiguration file, flags. Later ones win, field by field.
//
// Invariants: what Load returns has been validated as a whole and every path in
// it is absolute; the same sources give the same value.
package config
