// Package bundle defines the file that 'berthctl bundle' writes: what berthd's decisions can be
// computed again from. It is a tar archive, compressed with gzip, of the files below.
//
//	about.json     format, time, versions, and the missing parts
//	machine.json   the machine, as 'berthctl topology --export' writes it
//	config.yaml    the configuration in files and flags, as 'berthd config dump' prints it
//	node.json      facts of the node that the machine does not have
//	devices.json   the device resources with their devices
//	state.json     the ledger's state (ledger.Snapshot)
//	history.jsonl  the ledger's history, the newest entry first, one in a line
//	metrics.txt    the metrics
//
// Words:
//
//   - part: one of the files.
//   - mask: replace names by made ones.
//
// Invariants:
//
//   - A bundle has no answers of plugins and providers, no environment, and no annotations that
//     berth does not use.
//   - Any bytes are read without harm: sizes are bounded before memory is taken, nothing is
//     written, and an unknown or repeated part is an error that names it.
//   - A masked bundle has no name of the original, and leads to the same decisions: made names
//     have the order of the originals.
package bundle
