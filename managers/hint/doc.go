// Package hint is the bus between the topology manager and the managers that allocate
// resources. For each request it collects the hints of every provider in a configured order,
// and after the merge it plans and prepares the result with the same providers.
//
// Words:
//
//   - provider: a manager that allocates a resource: CPUs, memory, devices, or a resource of
//     an external process.
//   - hint: a set of NUMA nodes that can satisfy a request. It is preferred if no smaller set
//     could satisfy it, even on an idle machine.
//   - answer: the hints of one provider for one resource: no preference, impossible, a list
//     of sets, or a rule that describes a long list.
//   - required, advisory: whether a provider's failure refuses the admission, or counts as no
//     preference.
//   - remote call: a call to another process. Remote calls of planning go through Call, so a
//     plan can be repeated with recorded answers.
//
// Invariants: the order of the providers is configuration and does not change. Hints and Plan
// change nothing, and equal inputs give equal outputs. Every failure is in the trace or in the
// error.
//
// Other modules may import this package, and every release may change it.
package hint
