// Package config is berth's configuration as a document: what can be set, what
// holds where nothing is set, how it is written, and what each part of berth is
// configured with. It reads bytes, not files, and knows nothing of sockets or
// flags: berthd's sources are put together in server/internal/config, and whoever wants to
// know what berthd would do with a document (berthctl simulate) reads the same one
// with the same code.
//
// Words:
//
//   - layer: a document laid over a configuration. The fields that it has win.
//   - note: something a layer says that berth does not act on.
//
// Invariants: the same layers give the same value; Dump prints a document that
// reads as the same value; a configuration that Validate accepts is refused by a
// constructor only for a reason that lies in the machine.
package config
