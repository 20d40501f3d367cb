// Package drawing draws the machine with its pods: 'berthctl map', and the flag --map of other commands.
//
// Words: the picture is the model of package nodemap; a plan is the state that a simulated or rejected decision leads to.
//
// Invariants: all parts of a picture are of one revision of the ledger, or the picture says so.
package drawing
