// Package hint is the bus between the topology manager and those who hand out
// resources: it asks every provider, in a configured order, where a request
// could sit, and has them plan and prepare what was decided.
//
// Words:
//
//   - provider: someone who hands out a resource (CPUs, devices, memory, or an
//     outside process).
//   - hint: a set of NUMA nodes that could serve a request; preferred if no
//     narrower set could, even on an idle machine.
//   - answer: what a provider says about one resource: no preference,
//     impossible, options, or a rule that stands for many options.
//   - required, advisory: whether a provider's failure refuses the admission or
//     only counts as no preference.
//   - remote call: a call that leaves the process. Those of planning go through Call,
//     so that a plan can be repeated with recorded answers.
//
// Invariants: the order of providers is data and stable; a provider's Hints and
// Plan change nothing, and the same input gives the same output; a failure is
// never silently dropped.
package hint
