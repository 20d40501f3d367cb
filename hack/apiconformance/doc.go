// Package apiconformance tests the promises of the API that docs/api.md makes for all calls,
// on a berthd that runs as a program of its own: repeated calls after lost answers, the
// reasons of errors, Watch after an interruption, pages under change, and two owners.
//
// Words:
//
//   - node: a berthd with its directory, a machine that is made up, cgroups in memory, and a
//     device plugin.
//   - lost answer: berthd has answered, and the client has received nothing.
//
// Invariants: each method of the API is in the tables, and the tests fail if one is missing.
//
// Not here: what the managers decide (hack/conformance), and single services
// (server/internal/rpc/...).
package apiconformance
