// Package metrics exports berthd's metrics for Prometheus: the kubelet's metrics under the
// kubelet's names, so that existing dashboards work, and berth's own under berth_.
//
// Words:
//
//   - gauge: a value that is computed from the ledger's view at each scrape, so it cannot
//     differ from the ledger.
//   - counter: the number of events since the start. Counters are derived from the
//     engine's verdicts and traces. Managers do not import this package.
//   - settings: the configuration that counting depends on.
//
// Invariants: every admission except dry runs counts as a request, and failures also as
// errors. An allocation is counted when it is committed, so a rejected pod counts as no
// allocation. (The kubelet has already counted its first containers then.) A scrape never
// waits for an admission.
package metrics
