// Package get has the commands of berthctl that show state and change nothing: get, describe, explain, hints, history, watch, top
// and podresources. 'providers remove' is here too, because it belongs to the list of providers.
//
// Invariants: a list is of one revision of the ledger.
package get
