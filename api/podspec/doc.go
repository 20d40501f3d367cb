// Package podspec turns Kubernetes pods into berth's, and berth's verdicts into the status of a Kubernetes pod. It is the
// only place that knows which fields decide.
//
// Words:
//
//   - document: one object of a file. A YAML file holds several between lines of "---", a JSON file one after the other,
//     and an object of kind List or PodList several more.
//   - ignored field: a field of a document that this build's pod type does not have: misspelt, or from a newer
//     Kubernetes. It is reported and otherwise ignored.
//   - dropped field: a field that decides nothing about the placement on a node, and is not converted. Dropped lists them.
//
// Invariants: a pod that comes out has an identity; only what decides its place on a node is taken over, so a pod with its
// status and its volumes and one without give the same; amounts are in Kubernetes' canonical form; no input makes
// the package panic.
package podspec
