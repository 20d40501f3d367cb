// Package manifests has the tests of deploy/kubernetes that need no cluster: each kustomization is
// built, every object is decoded strictly into the types of Kubernetes, and what the objects say of
// each other, of the programs' flags, of berthd's configuration and of docs/kubernetes.md is compared.
package manifests
