// Package topology decides where a request sits: it merges what the hint
// providers answered into one set of NUMA nodes, and admits or refuses by
// policy. It owns nothing and remembers nothing; a Manager is configuration.
//
// # Words
//
//   - list: a provider's answer for one resource as the merge sees it.
//   - abstention: a preferred hint without nodes; its list fits any preferred
//     result.
//   - choice: one hint of every list. Its candidate is what the nodes of the
//     machine and of all chosen hints have in common; it is preferred if all
//     chosen hints are, and name the same nodes.
//   - D: the nodes of the machine.
//   - B: what at least one list needs at least: the largest, over the lists, of
//     the smallest number of nodes that a hint of the list names.
//   - stage: how far the merge came: a preferred candidate, another candidate,
//     or no candidate at all.
//   - scope: whether a pod is placed container by container or as a whole.
//
// # The result, without any order
//
// The reference (the kubelet's topology manager, KEP-693) walks all choices and
// keeps the better of two candidates at every step. Its comparison is a strict
// total order, so the result is a minimum and can be had without the walk:
//
//	P = the non-empty candidates of preferred choices
//	A = the non-empty candidates of all choices
//	result = min P by (size, distance, value), preferred      if P is not empty
//	       = min A by (tier, distance, value), not preferred  if A is not empty
//	       = D, not preferred                                 otherwise
//
// where the tier of a mask counts sizes B, B-1, … 1, B+1, B+2, …; distance is
// the sum over all ordered pairs of the mask's nodes if the option
// prefer-closest-numa-nodes counts, else 0 (KEP-3545); and value is the mask as
// an integer.
//
// P needs one intersection of the sets of preferred masks, of all lists that do
// not abstain. A is built list by list, as the set of masks reachable so far. If
// all pairs would be too many, sums over supersets (a zeta transform) replace them;
// their cost depends on the number of nodes alone. Only nodes that every list
// mentions can remain, so every mask is cut to those first.
//
// A rule (hint.Rule) stands for a list that would be too long. The masks that
// several rules prefer are found by numa.Search. Where nothing is preferred, rules
// are expanded, cut to the nodes that every list mentions.
//
// # Many nodes
//
// If more than twelve nodes can be part of a result that is not preferred, A is not
// computed; see the type estimate. Machines whose accelerators' memory makes NUMA
// nodes have more, but a request for CPUs can only be placed on nodes with CPUs, so
// that its merge is exact.
//
// # Invariants
//
//   - The order of providers, of resources and of hints does not change a result.
//   - A result is exact unless it is marked Approximate. Even then it is a candidate
//     of some choice, and never wrongly preferred. Whether rules of unlike weights
//     leave a given set together is PARTITION, an NP-complete question, so no
//     merge can be exact in all cases.
package topology
