// Package metrics is what berthd tells a Prometheus: the kubelet's metrics under
// the kubelet's names, so that dashboards keep working, and berth's own under
// berth_.
//
// Words:
//
//   - gauge: a value read from the ledger's view when somebody scrapes. Nothing
//     is raised and lowered along the way, so a gauge cannot drift from the facts.
//   - counter: what has happened since the start, told by the verdicts of the
//     engine and their traces at the edge. Managers know nothing of metrics.
//   - settings: what counting depends on beside a verdict.
//
// Invariants: requests and errors are counted for every admission that is no dry
// run; what was allotted is counted once it is committed, and only then, so a pod
// that is rejected in the end counts as no allocation. (The kubelet has counted
// its first containers by then.) A scrape never waits for an admission.
package metrics
