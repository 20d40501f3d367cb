// Package convert turns messages into the managers' types and back. It is the
// one hand-written package of api/ and the one place where input is read: a pod
// that leaves it is well-formed or an error that names every field that is wrong.
//
// Invariants: no decision is taken here; the output of one direction is valid input of the other
// reads back the same; no input makes it panic.
package convert
