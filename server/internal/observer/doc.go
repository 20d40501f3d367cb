// Package observer reads what the pods of the node have from their cgroups and claim records, for managers/recovery.
//
// Words:
//
//   - observation: what the cgroups and the claim record of a pod say, whether the ledger has the pod or not.
//   - damaged: a claim record that is there and can never be believed.
//
// Invariants: nothing is changed, and nothing waits for the operations on cgroups. A record that cannot be read at the moment is
// an error, and not one that is damaged or missing, so nothing is decided about pods then (TestUnreadableRecords).
package observer
