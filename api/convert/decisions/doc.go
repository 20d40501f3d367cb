// Package decisions turns requests to decide about pods and their answers into the types of managers/admission and back:
// admissions, resizes, defragmentation, explanations, the history of decisions, and what a start found about each pod.
//
// Words: a verdict is the outcome of an admission; a trace is its explanation.
//
// Invariants: no decision is taken here; violations name every field that is wrong.
package decisions
