// Package manifests has the tests of deploy/kubernetes and deploy/helm that need no cluster: each kustomization is
// built, the chart is rendered with each value and each pair of values, every object is decoded strictly into the types
// of Kubernetes, and what the objects say of each other, of the programs' flags, of berthd's configuration and of
// docs/kubernetes.md is compared. The objects of the chart are those of the kustomizations.
package manifests
