// Package top shows the resource usage of containers as a text screen that changes with readings
// and keys.
//
// It owns the screen and the rates. It makes no calls, reads no clock and does not use a
// terminal: its inputs are readings, keys and sizes, and its output is lines.
//
// # Words
//
//   - reading: an answer of NodeService.GetUsage. Two readings give rates.
//   - row: a container with its rates. Table is all rows and the summary above them.
//   - model: the screen: a table, the order, the filter, the selected row, and the open pod.
//
// # Invariants
//
//   - View has at most the given number of lines, and none is longer than the given width.
//   - The same model gives the same lines.
//   - A rate without two readings of the same container is unknown, not zero.
//   - Text from outside of this package is escaped before it is shown.
package top
